"""Exact likelihoods with a sum over a large set: latent-variable models and softmax over many classes."""

from __future__ import annotations

from torch import Tensor

from fcco.functional._checks import as_value, check_floats, check_per_example, check_same, check_some_weight
from fcco.functional._tensors import at_least_float32, mean


def latent_variable_loss(log_likelihood: Tensor, log_weight: Tensor) -> Tensor:
    r"""Negative log-likelihood of a model that first draws a latent z (retrieves), and then y given z (predicts).

    .. math:: F = \frac 1 n \sum_i \Bigl( -\log \sum_z p(y_i | z, x_i) e^{w_{iz}} + \log \sum_z e^{w_{iz}} \Bigr)

    The probability Pr(z | x_i) is the softmax of w_i = E(x_i)·E(z).

    Parameters
    ----------
    log_likelihood : Tensor of shape (n, Z)
        log p(y_i | z, x_i), which is -inf where the likelihood is 0.
    log_weight : Tensor of shape (n, Z)
        The weights w. Use -inf for a z that is impossible for example i.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``log_likelihood``.

    Raises
    ------
    ValueError
        If all probabilities of an example are 0, or if a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.LatentVariableLoss : The same objective, estimated from sampled z.

    References
    ----------
    .. [1] Guu et al., *Retrieval Augmented Language Model Pre-Training*, ICML 2020.

    Examples
    --------
    >>> import torch
    >>> log_likelihood = torch.tensor([[0.5, 0.25]]).log()
    >>> latent_variable_loss(log_likelihood, torch.zeros(1, 2))  # -log((1/2 + 1/4) / 2)
    tensor(0.9808)
    """
    check_floats(log_likelihood, "log_likelihood", "[n, Z]", zero_weight=True, room=4)
    check_floats(log_weight, "log_weight", "[n, Z]", zero_weight=True, room=4)
    check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
    check_some_weight(log_weight, "log_weight")
    check_some_weight(at_least_float32(log_likelihood) + at_least_float32(log_weight), "log_likelihood + log_weight")
    weight = at_least_float32(log_weight)
    # The largest weight of an example cancels. Subtracting it first avoids a loss of digits.
    weight = weight - weight.detach().amax(1, keepdim=True)
    joint = at_least_float32(log_likelihood) + weight
    return as_value(mean(weight.logsumexp(1) - joint.logsumexp(1)), log_likelihood, "log_likelihood")


def softmax_loss(target_logit: Tensor, logits: Tensor) -> Tensor:
    r"""Cross entropy of the softmax over a set that includes the target.

    .. math:: F = \frac 1 n \sum_i \log \sum_c e^{s_{ic} - t_i}

    Parameters
    ----------
    target_logit : Tensor of shape (n,)
        The logits t of the targets.
    logits : Tensor of shape (n, C)
        The logits s of all classes, including the target. Use -inf for a class that is impossible.

    Returns
    -------
    Tensor
        The loss, a scalar with the dtype of ``logits``.

    Raises
    ------
    ValueError
        If a shape or a value is invalid.
    TypeError
        If an argument has the wrong type or dtype.

    See Also
    --------
    fcco.losses.SoftmaxLoss : The same objective, estimated from sampled classes.

    References
    ----------
    .. [1] Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022.

    Examples
    --------
    >>> import torch
    >>> softmax_loss(torch.tensor([0.0]), torch.zeros(1, 4))  # log 4
    tensor(1.3863)
    """
    check_floats(target_logit, "target_logit", room=4)
    check_floats(logits, "logits", "[n, C]", zero_weight=True, room=4)
    check_per_example(target_logit, "target_logit", logits, "logits")
    if target_logit.dtype != logits.dtype:
        raise TypeError(
            f"target_logit and logits must have the same dtype; got {target_logit.dtype} and {logits.dtype}"
        )
    check_some_weight(logits, "logits")
    above = at_least_float32(logits) - at_least_float32(target_logit).unsqueeze(1)
    return as_value(mean(above.logsumexp(1)), logits, "logits")
