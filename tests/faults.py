"""Plant faults in the core, one after the other, and list those that no test notices: ``make faults``.

The changed source is run in a namespace of its own, and the code of its functions is put into those that tests call.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol

TESTS = Path(__file__).parent

FAULTS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "core/arrays.py": {
        "core/test_arrays.py::test_arrays": [
            ("np.bincount(numbers, weight, size)", "np.bincount(numbers, None, size)"),
            ("slots[order[1:]] = is_new", "slots[order[:-1]] = is_new"),
            ("searched(ordered[:-1], values)) == values", "searched(ordered[:-1], values)) >= values"),
            ("searchsorted(some)) == some", "searchsorted(some)) >= some"),
            ("result[order] = ordered.searchsorted", "result[:] = ordered.searchsorted"),
            ("numbers + size * np.arange(len(weight))[:, None]", "numbers + 0 * np.arange(len(weight))[:, None]"),
            ("out=result[..., 1:]", "out=result[..., :-1]"),
            ("ordered.searchsorted(values, side)", "ordered.searchsorted(values)"),
        ],
    },
    "core/kernels.py": {
        "core/test_kernels.py::test_sums_equal_those_over_all_pairs": [
            ("pairs[self.anchors, self.candidates] = fill", "pairs[self.anchors, self.anchors] = fill"),
            ("pairs.same.without(slope)", "slope"),
            ("pairs.same.without(value)", "value"),
            ("grad = divided(grad, tau)\n            to_anchors", "to_anchors"),
            ("((grad @ slope) * scaled(c, scale)).sum(0)", "((grad @ slope) * c).sum(0)"),
            ("c * scale[min(k, len(scale) - 1)", "c * scale[0"),
            ("t += xp.log(pairs.weight)", "t += 0 * pairs.weight"),
            ("part *= scale[min(k, len(scale) - 1)]", "pass"),
            ("scaled(made.by_candidates(grad), scale", "made.by_candidates(grad"),
            ("faint = total < kind.tiny / kind.eps", "faint = total < 0"),
            ("spread(divided(grad, tau)", "spread(grad"),
        ],
        "core/test_step.py::test_fixed_shapes": [
            ("(weight[:, None] if of_candidates else weight)", "1.0"),
        ],
        "core/test_step.py::test_a_full_batch_is_the_exact_objective": [
            ("values[:, : len(self.anchors)] -= parts", "pass"),
            ("values[:, self.candidates] -= parts", "pass"),
        ],
        "core/test_step.py::test_rows_that_repeat": [
            (
                "candidates, self.anchors) if of_candidates else (self.anchors, self.candidates",
                "anchors, self.candidates) if of_candidates else (self.candidates, self.anchors",
            ),
        ],
        "core/test_kernels.py::test_sorting_loses_no_digits": [
            (") if self.weight is None else self.weight)", "))"),
        ],
        "core/test_kernels.py::test_sums_from_a_key_on": [
            ("above = candidate_keys >= keys[:, None]", "above = candidate_keys > keys[:, None]"),
        ],
        "objectives/test_bipartite.py::test_min_max_is_exact": [
            ("xp.stack([0 * h + 1, 0 * h + 1, 2 * h, 2 * h])", "xp.stack([0 * h + 1, 0 * h + 1, h, h])"),
        ],
        "objectives/test_partial_auc.py::test_of_all_data_it_is_exact": [
            ("xp.stack([upto - below, weight.sum() - upto])", "xp.stack([upto - below, weight.sum() - below])"),
        ],
        "core/test_kernels.py::test_distances_lose_no_digits_to_an_offset": [
            ("2 * (grad.T @ a - row_sums(grad.T)[:, None] * b)", "grad.T @ a - row_sums(grad.T)[:, None] * b"),
        ],
        "objectives/test_classes.py::test_of_all_data_it_is_the_exact_mean_over_classes": [
            ("by_pair = back(divided(grad, tau), cells.taken(scale))", "by_pair = back(grad, cells.taken(scale))"),
        ],
    },
    "core/objective.py": {
        "core/test_unbiased.py::test_gradients_are_unbiased[precision-balanced(2, 1)-all]": [
            ("return there if self.sizes is None else self.by_relation(x, self.sizes)", "return there"),
            ("there if self.anchor_sizes is None else self.by_anchors(x, self.anchor_sizes)", "there"),
        ],
        "core/test_step.py::test_rows_that_repeat": [
            ("sizes = less(sizes, relation, copies - 1)", "sizes = sizes + 0 * copies"),
        ],
        "core/test_step.py::test_fixed_shapes": [
            ("total = weight if pairs.weight is None else weight * pairs.weight", "total = weight"),
            ("kind, self.kinds, weight", "kind, self.kinds, 0 * weight + 1"),
        ],
        "core/test_step.py::test_a_full_batch_is_the_exact_objective": [
            ("+= w.own * self.self_value", "+= w.own"),
            ("of_bare = xp.exp(logs - ", "of_bare = xp.exp(bare - "),
        ],
        "core/test_step.py::test_sums_are_weighed": [
            ("parts[0 if one else place] += w.own", "parts[0] += w.own"),
            ("mine = xp.logaddexp(parts[0 if one else place], own)", "mine = xp.logaddexp(parts[0], own)"),
        ],
        "core/test_unbiased.py::test_the_net_force_is_nothing_on_average": [
            ("grad * xp.exp(away)", "grad + 0 * away"),
        ],
        "core/test_unbiased.py::test_gradients_are_unbiased[risk-balanced(2, 1)-all]": [
            ("/ weight if is_positive(weight) else scale * (weight > 0) / at_least(weight, TINY)", "+ 0 * weight"),
        ],
        "losses/test_loss.py::test_a_batch_in_eval_mode_is_the_whole_population": [
            ("sizes = objective.anchor_sizes", "anchor_sizes"),
        ],
        "objectives/test_contrastive.py::test_the_memory_is_right_on_average[5-False-None-two_views]": [
            ("back(space.slope(slope, inner, at))[1]", "back(slope)[1]"),
        ],
        "objectives/test_contrastive.py::test_all_data_give_the_exact_objective": [
            ("columns = [pairs.same.without(column.clone()) for column in columns]", "columns = list(columns)"),
        ],
    },
    "core/outers.py": {
        "core/test_functions.py::test_outers": [
            ("self.factor / (u.shape[1] if u.ndim == 2 else 1)", "self.factor"),
            ("return slope * top + discount * of_top", "return slope * top"),
            ("slope = of_two if self.likelihood else of_two * xp.exp(one - total)", "slope = of_two"),
        ],
        "objectives/test_bipartite.py::test_min_max_is_exact": [
            ("[-one - height, height - two,", "[-one - height, height + two,"),
        ],
        "objectives/test_partial_auc.py::test_of_all_data_it_is_exact": [
            ("return self.p * self.value(u, rows) * (self.p * u", "return self.value(u, rows) * (self.p * u"),
            ("((self.share - u[:, 1]) / u[:, 0]", "((self.share - u[:, 0]) / u[:, 0]"),
        ],
    },
    "core/rules.py": {
        "core/test_step.py::test_rows_follow_their_rule": [
            ("return new, batch.space.floor(old, batch.estimate, floor)", "return new, old"),
            ("return new, batch.space.floor(old, batch.estimate, floor)", "return new, new"),
            ("start: ClassVar[float | None] = 0.0", "start: ClassVar[float | None] = None"),
            ("decays: ClassVar[bool] = True", "decays: ClassVar[bool] = False"),
        ],
        "core/test_step.py::test_rows_that_repeat": [
            ("space.scale(batch.estimate, batch.coverage)", "estimate"),
            ("new\n\n\n@dataclass(frozen=True)\nclass SCGD", "old\n\n\n@dataclass(frozen=True)\nclass SCGD"),
        ],
    },
    "core/spaces.py": {
        "core/test_functions.py::test_log_space_is_the_plain_one": [
            ("namespace(old).logaddexp(old + _log(1 - rate), new + _log(rate)", "old + rate * (new - old"),
            ("of_f * xp.exp(inner - at)", "of_f + 0 * at"),
            ("namespace(values).maximum(values, other + _log(factor))", "namespace(values).maximum(values, other)"),
            ("shares = weighted / column(taken(count, slot), values)", "shares = weighted"),
            ("return peak + xp.log(sums / column(total.clip(1, None), values))", "return peak + xp.log(sums)"),
            ("factor = namespace(values).exp(log_factor)", "factor = namespace(values).exp(-log_factor)"),
        ],
    },
    "core/sorting.py": {
        "core/test_kernels.py::test_sums_equal_those_over_all_pairs": [
            ("power], power * made[power", "power], made[power"),
            ("same.off_anchors(sums.slope, slope * own), by", "sums.slope, by"),
            ("result = result - counted(same.candidates, len(candidates), own * taken(per, same.anchors, 1))", "pass"),
        ],
        "core/test_kernels.py::test_sums_from_a_key_on": [
            ("candidate_keys, order), keys", 'candidate_keys, order), keys, side="right"'),
            (
                "result if same is None else same.off_candidates(result, own * same.at_anchors(per))",
                "result",
            ),
            ('rank[0], side="right") -', 'rank[0], side="left") -'),
            ("own = own * (taken(candidate_keys, same.candidates) >= taken(keys, same.anchors))", "own = own * 1"),
        ],
    },
    "core/step.py": {
        "objectives/test_own.py::test_the_gradient_with_a_memory_is_unbiased[False-False]": [
            ("stands * n / at_least(n - 1.0, 1)", "stands"),
            ("sizes if known else sizes * part", "sizes"),
            ("else part * sum(", "else sum("),
        ],
        "core/test_step.py::test_rows_that_repeat": [
            (
                "where(column(written, inner), mean, inner)",
                "where(column(written, inner), inner, inner)",
            ),
            ("same.copies(pool.weight, len(anchors[0])) if same is not None and batch.repeats else 1", "1"),
        ],
        "core/test_step.py::test_fixed_shapes": [
            ("share / (count.sum() + TINY)", "share / len(share)"),
            ("share, count = share * is_anchor, count * is_anchor", "share = share * is_anchor"),
        ],
        "core/test_unbiased.py::test_gradients_are_unbiased[precision-balanced(2, 1)-all]": [
            ("return totals.sum()", "return (totals + 1).sum()"),
            ("strata, (there > 0) * one", "strata, one + 0 * there"),
            (
                "counts if batch.every is None else placed(counts, batch.every, len(one))",
                "objective.is_anchor(x) * one",
            ),
        ],
        "test_golden.py::test_golden_run[PNormPushLoss(rule=SOX(0.3))]": [
            ("weighed(space.slope(slope, inner, where), weight)", "weighed(slope + 0 * inner, weight)"),
        ],
        "losses/test_loss.py::test_two_ranks_take_the_steps_of_one": [
            ("inner, where), weight)[mine]", "inner, where), weight)[: mine.stop - mine.start]"),
            ("ranks.sum(own) + b if two_sided", "own + b if two_sided"),
            ("else tuple(ranks.sum(g) for g in gradients)", "else tuple(gradients)"),
        ],
        "core/test_step.py::test_a_step_with_a_memory_has_no_net_force": [
            ("objective.without_net_force(at(g, here), take(batch.x, here)) for", "g for"),
        ],
        "core/test_unbiased.py::test_the_net_force_is_nothing_on_average": [
            ("there, sizes = less(there, row, own), less(sizes,", "there, sizes = there, less(sizes,"),
            ("less(sizes, row, objective.is_anchor(x) * one if known else own)", "sizes"),
            ("memory.mean + memory.rate * (", "memory.mean + memory.rate / 2 * ("),
        ],
        "core/test_unbiased.py::test_an_empty_memory_is_none": [
            ("objective.is_anchor(x) * one if known else own", "own"),
            ("batch.same.copies(counts, len(one), of_candidates=True) if batch.repeats else is_known", "is_known"),
        ],
        "objectives/test_classes.py::test_with_a_memory_the_gradient_is_unbiased[ap-ramp]": [
            ("share = objective.worth(anchors, share)", "share = share * 1"),
        ],
        "core/test_unbiased.py::test_estimates_of_remembered_anchors_are_unbiased[risk]": [
            ("at_least(there.sum(0), 1", "at_least(there.sum(0) + fresh.sum(0), 1"),
        ],
        "core/test_unbiased.py::test_estimates_of_remembered_anchors_are_unbiased[precision]": [
            ("w.known * fresh / at_least(there, 1)", "w.known * fresh / at_least(there + fresh, 1)"),
            ("there = pool if relation is None else less(pool, relation, 1.0)", "there = pool"),
        ],
        "core/test_unbiased.py::test_a_floor_moves_what_candidates_get_from_remembered_anchors": [
            ("where = objective.floor(old, batch.x, new, where)", "pass"),
        ],
        "core/test_step.py::test_candidates_meet_remembered_anchors_at_refreshed_rows": [
            ("where = refreshed = mixed if", "refreshed = mixed if"),
        ],
        "core/test_unbiased.py::test_estimates_of_remembered_anchors_are_unbiased[sampled]": [
            ("weigh_fresh(sizes, fresh, pool, relation,", "weigh_fresh(sizes, fresh, pool - fresh, relation,"),
        ],
        "core/test_step.py::test_nothing_is_known": [
            ("inner = xp.where(column(share > 0, inner), inner, objective.unknown)", "pass"),
        ],
        "core/test_step.py::test_each_process_estimates_its_own_anchors": [
            ("own] - batch.mine.start,", "own],"),
            (
                "(0, len(every)) if mine is None else ((every < end).sum() for end in (mine.start, mine.stop)",
                "0, len(every",
            ),
        ],
        "core/test_step.py::test_a_memory_for_the_rows_alone": [
            ("else [pooled.inner])", "else [own.inner])"),
        ],
        "losses/test_loss.py::test_ranks_that_do_not_gather_are_each_by_themselves_but_for_the_table": [
            ("weight[everyone.stop :] = 0.0", "weight[everyone.stop :] = 1.0"),
            ("count, met = (part * at(batch.pool.weight, batch.every) for part in (count, share))", "pass"),
            ("xp.concatenate(now) if batch.apart is None else ranks.sum(xp.concatenate(now))", "xp.concatenate(now)"),
        ],
        "losses/test_loss.py::test_two_ranks_add_up_an_f_with_a_sample": [
            ("value = ranks.sum(part.detach())", "value = part.detach()"),
        ],
        "core/test_unbiased.py::test_gradients_are_unbiased[push-balanced(2, 1)-all]": [
            ("1.0 + 0 * now[0] if objective.is_mean else objective", "objective"),
        ],
        "core/test_step.py::test_rows_follow_their_rule": [
            ("table.coverage(cast(there > 0, share).sum())", "table.coverage(len(rows))"),
        ],
    },
    "core/surrogates.py": {
        "core/test_functions.py::test_surrogates": [
            ("return 1.0 if self.bounded else", "return 0.5 if self.bounded else"),
            ("return height * height, 2 * height", "return height * height, height"),
        ],
        "core/test_kernels.py::test_sorting_loses_no_digits": [
            ("height > 0) * xp.ones_like", "height >= 0) * xp.ones_like"),
        ],
    },
    "core/weights.py": {
        "core/test_weights.py::test_weights_of_a_pool": [
            ("rest = at_least(less(sizes, relation, 1.0), 0)\n    known", "rest = sizes\n    known"),
            ("own = 2 - 1 / at_least(each[relation], 1)\n", "own = each[relation].clip(None, 2)\n"),
            ("each[relation] * copies", "each[relation]"),
            ("others = less(there, relation, copies)", "others = less(there, relation, 1.0)"),
            ("(all_of_them - own) / at_least(", "all_of_them / at_least("),
            ("known = ((others > 0) | (rest <= 0)).all(0)", "known = (others > 0).all(0)"),
            ("known = ((there > 0) | (sizes <= 0)).all(0)", "known = (there > 0).any(0)"),
            ("            if not is_positive(there):", "            if False:"),
        ],
        "core/test_weights.py::test_weights_of_fresh_candidates": [
            ("rest = sizes if relation is None else at_least(less(sizes, relation, 1.0), 0)", "rest = sizes"),
            ('== "exact" else part if term == "sampled', '!= "bounded'),
            ("    if fill and not is_positive(fresh):", "    if False:"),
        ],
        "core/test_weights.py::test_weights_of_fresh_candidates_as_anchors_see_them": [
            ("stands * (sizes / anchors)", "stands * (there / anchors)"),
        ],
    },
    "objectives/bipartite.py": {
        "objectives/test_bipartite.py::test_with_a_memory_the_gradient_is_unbiased[ap-ramp]": [
            ("float(of_class[:, 1].sum", "float(of_class.sum"),
        ],
        "objectives/test_classes.py::test_of_all_data_it_is_the_exact_mean_over_classes": [
            ("share = share / self.of_class(x, fresh.there)[1].clip(1, None)", "share = share / 1"),
        ],
        "objectives/test_classes.py::test_with_a_memory_the_gradient_is_unbiased[ap-ramp]": [
            ("x, self.anchor_sizes)[1]", "x, self.anchor_sizes)[0]"),
        ],
        "objectives/test_classes.py::test_rows_without_labels_may_stay_in_fixed_shapes": [
            ("weight if self.classes is None else weight * (x.label >= 0)", "weight"),
        ],
        "objectives/test_bipartite.py::test_min_max_is_exact": [
            ("[[1, 0, 1, 0]]", "[[0, 1, 0, 1]]"),
        ],
        "objectives/test_bipartite.py::test_of_all_data_it_is_exact": [
            ("lambda grad, *side: back(-grad, *side)", "lambda grad, *side: back(grad, *side)"),
        ],
        "objectives/test_classes.py::test_with_a_memory_the_gradient_is_unbiased[auc-ramp]": [
            ("((of_class[:, 0] > 0) | (not self.is_mean))", "(of_class[:, 0] > -1)"),
        ],
    },
    "objectives/classes.py": {
        "losses/test_classes.py::test_rows_are_those_of_each_class_by_itself": [
            ("(rows[:, None] * classes + group).reshape(-1)", "(rows[:, None] + group * len(rows)).reshape(-1)"),
        ],
        "objectives/test_classes.py::test_labels_may_be_the_numbers_of_classes_or_nan": [
            ("xp.where(labels[:, None] < 0, -1, (labels[:, None] == group) * 1)", "(labels[:, None] == group) * 1"),
        ],
    },
    "objectives/contrastive.py": {
        "objectives/test_contrastive.py::test_all_data_give_the_exact_objective": [
            ("views * (self.sizes - 1)", "views * self.sizes"),
            ("[(a, (d, c)), (b, (c, d))]", "[(a, (c, d)), (b, (d, c))]"),
        ],
        "objectives/test_contrastive.py::test_an_example_alone_has_the_value_zero": [
            ("return w if self.self_term else w._replace(known=w.known & (w.each[0] > 0))", "return w"),
        ],
        "objectives/test_contrastive.py::test_robust_all_data_give_the_exact_objective": [
            ("(self.tau * (u + self.rho)).mean(1)", "(self.tau * (u + self.rho)).sum(1)"),
            ("self.tau / 2 + 0 * u", "self.tau + 0 * u"),
        ],
        "losses/test_contrastive_variants.py::TestTemperatureOfEveryExample": [
            ("2 * step.gradients[2]", "step.gradients[2]"),
            ("step.at + self.rho", "step.at"),
            ("total / count.clamp(min=1)", "total / 1"),
        ],
    },
    "objectives/given.py": {
        "objectives/test_given.py::test_parameters_of_an_objective_without_a_pool": [
            ("return made[:k], (), *made[k:]", "return made[:k], ()"),
        ],
    },
    "objectives/likelihood.py": {
        "objectives/test_given.py::test_equal_logits_give_the_logarithm_of_the_number_of_classes": [
            ("(others + 1) / (drawn + 1)", "others / drawn"),
        ],
        "losses/test_candidates.py::TestUnbiased::test_draws_of_known_probability_among_all_classes": [
            ("each - others.log() - log_q", "each - log_q"),
            ("is_hit | ~is_hit).sum(1)", "~is_hit).sum(1)"),
        ],
        "losses/test_candidates.py::TestCrossEntropy::test_two_towers_with_log_q": [
            ("math.log(x.sampled_logits.shape[1] + 1)", "math.log(x.sampled_logits.shape[1])"),
        ],
        "losses/test_unbiased.py::TestOthers::test_latent_variables_of_unequal_probabilities": [
            ("x.log_weight - x.log_q", "x.log_weight + x.log_q"),
        ],
    },
    "objectives/lists.py": {
        "losses/test_samplers.py": [
            ("x.relevant.clip(1, None)", "w.there[0].clip(1, None)"),
            ("* (w.there.sum(0) / x.size)", "* 1"),
        ],
        "objectives/test_lists.py::test_irrelevant_items_of_list_mle_need_no_relevant_one": [
            ("others * (x.relevance > 0)", "others"),
        ],
        "objectives/test_lists.py::test_whole_lists_give_the_exact_objective": [
            ("xp.log2(place + 2)", "xp.log2(place + 3)"),
            ("terms * (place < self.k)", "terms * (place <= self.k)"),
            ("alike = xp.where(x.relevance > 0, x.relevant, x.size - x.relevant)", "alike = x.relevant"),
        ],
    },
    "objectives/neighbours.py": {
        "core/test_unbiased.py::test_the_net_force_is_nothing_on_average": [
            ("return rest - (rest + others) / self.sizes.sum()", "return rest - rest / self.sizes.sum()"),
            ("(gradient.sum(0) - of_class) / strangers.clip(1, None)", "(gradient.sum(0) - of_class) / len(one)"),
        ],
        "core/test_unbiased.py::test_without_the_net_force_an_example_keeps_its_own": [
            ("return rest - rest / self.sizes\n", "return rest\n"),
            ("max(len(gradient) - 1, 1)", "len(gradient)"),
        ],
        "core/test_step.py::test_an_example_without_a_mate_has_no_logarithm": [
            ("self.total = float(self.anchor_sizes.sum())", "self.total = float(sizes.sum())"),
            ("if self.needs_mate:", "if False:"),
        ],
        "objectives/test_contrastive.py::test_supervised_memory_is_right_on_average[False-one alone]": [
            ("stack([with_mates.sum(), sizes.sum()])", "stack([sizes.sum(), sizes.sum()])"),
        ],
        "core/test_unbiased.py::test_gradients_are_unbiased": [
            ("2 if self.kinds > 1 else 1", "2"),
        ],
        "losses/test_unbiased.py::TestNeighbours::test_any_balance_of_all_classes": [
            ("if self.kinds > 2:", "if False:"),
            ("w.each[0] / taken(each, anchors.label)", "w.each[0]"),
        ],
        "losses/test_degenerate.py::TestNeighbours::test_one_example_by_itself": [
            ("w.known & (w.there.sum(0) > copies)", "w.known"),
        ],
        "losses/test_degenerate.py::TestNeighbours::test_likelihood_needs_a_mate": [
            ("pool.weight).sum(1) > copies", "pool.weight).sum(1) > 0"),
        ],
    },
    "objectives/partial_auc.py": {
        "objectives/test_partial_auc.py::test_of_all_data_it_is_exact": [
            ("own=1 / sizes[0].clip(1, None)", "own=0 / sizes[0].clip(1, None)"),
        ],
        "objectives/test_partial_auc.py::test_the_peak_is_that_of_anchors_that_count": [
            ('xp.where(share > 0, self.outer.p * inner, -float("inf")', "(self.outer.p * inner"),
        ],
        "objectives/test_partial_auc.py::test_equal_rows_with_different_scores_are_one_negative": [
            ("[w.each[0], w.each[0], w.each[2]]", "[w.each[0], w.each[1], w.each[2]]"),
        ],
        "objectives/test_partial_auc.py::test_with_a_memory_the_gradient_is_unbiased[cvar-squared_hinge]": [
            ("arange(2)), float(sizes[0", "arange(2)), float(sizes[1"),
        ],
    },
    "objectives/robust.py": {
        "objectives/test_given.py::test_invariance_to_all_observations_is_exact": [
            ("torch.where(x.label == 1, mean, -mean)", "torch.where(x.label == 1, mean, mean)"),
        ],
    },
    "objectives/survival.py": {
        "core/test_step.py::test_the_floor_of_a_risk": [
            ("at_least(len(candidates.time) - earlier, 1)", "at_least(earlier, 1)"),
        ],
        "core/test_unbiased.py::test_an_empty_memory_is_none": [
            ("(namespace(sizes).arange(2))", "1"),
        ],
        "core/test_step.py::test_a_risk_set_of_events_alone_stands_for_everybody": [
            ('self.self_term, self.fills = term, term == "sampled"', "self.self_term, self.fills = term, False"),
        ],
    },
    "losses/table.py": {
        "core/test_step.py::test_rows_follow_their_rule": [
            ("first if self.cold is None else self.cold", "first"),
            ("True if seen.dtype == bool else seen + 1", "True if seen.dtype == bool else 1"),
            ("cast(self.seen, self.first)", "cast(self.seen, self.first) + 1"),
            ('self.buffers["step"] += 1', 'self.buffers["step"] += 0'),
        ],
        "test_contract.py::TestBatch::test_padding_changes_nothing[SOX(gamma=0.3, safeguard=True)-plain-dim1]": [
            ("rows, new, seen = (part[step.written] for part in (rows, new, seen))", "pass"),
        ],
        "losses/test_loss.py::test_steps_in_fixed_shapes_write_no_padding": [
            ("table.write(rows, new, step.rate, step.written)", "table.write(rows, new, step.rate)"),
        ],
        "test_golden.py::test_golden_run[AveragePrecisionLoss(rule=MOAP(0.3))]": [
            ("return self.n_outer / (distinct", "return self.table.n / (distinct"),
        ],
    },
    "losses/memory.py": {
        "losses/test_collapse.py::test_a_memory_that_repels_only_estimates[0.1]": [
            ("if objective.repels:", "if False:"),
        ],
        "losses/test_loss.py::test_the_memory_holds_the_newest_outputs_of_each_ring": [
            ("born[...] = xp.where(memory.pool.weight > 0, born, -1)", "pass"),
            ("member = member & is_last(batch.rows)", "pass"),
            ("at[memory.anchors] = step.refreshed", "pass"),
            ("step.kept * as", "step.new * as"),
            ("born[-1], at[-1], share[-1] = -1, 0.0, 0.0", "pass"),
            ("taken(new, ring) - rank <=", "rank <"),
            ("(so_far * member).sum(0) - 1", "(so_far * member).sum(0) - 0"),
            ("at_most(rings.step, HORIZON - 1) + 1", "at_most(rings.step, HORIZON - 1) + 2"),
            ("at_most(rings.step, HORIZON - 1) + 1", "rings.step + 1"),
            ("count += 1", "pass"),
            ("is_here = is_here & ~contains(", "contains("),
        ],
        "test_memory.py::test_buffers_without_their_outputs_are_an_empty_memory": [
            ("if not self.n_columns:  # savers", "if False:  # savers"),
        ],
        "losses/test_loss.py::test_a_memory_without_rows": [
            ("cursor[...] = (cursor + new) % self.size", "cursor[...] = new % self.size"),
        ],
        "losses/test_loss.py::test_a_run_goes_on_from_its_state_bit_for_bit": [
            ("mean[...] = step.mean", "pass"),
        ],
    },
    "losses/together.py": {
        "losses/test_together.py::test_counts_pairs_that_meet_again[classes]": [
            ("(own == last)", "(own != last)"),
            ("rows, every)[:, None] != rows", "rows, every)[:, None] >= 0"),
            ("(c * p).sum()", "p.sum()"),
            ("len(sizes) - 1)] -= 1", "len(sizes) - 1)] -= 0"),
        ],
        "losses/test_together.py::test_counts_pairs_that_meet_again[random]": [
            ("if len(sizes) == 1 else masks", "if False else masks"),
        ],
        "losses/test_together.py::test_warns[views in classes]": [
            ("LOOKS, LEAST = 8, 16, 100", "LOOKS, LEAST = 8, 16, 10_000"),
        ],
    },
    "losses/loss.py": {
        "losses/test_loss.py::test_only_training_changes_the_state": [
            ("if not self.is_frozen:", "if True:"),
        ],
        "core/test_step.py::test_rows_follow_their_rule": [
            ("objective, rule, rule.start", "objective, rule, None"),
        ],
        "losses/test_loss.py::test_two_ranks_take_the_steps_of_one": [
            ("[gradient * size for gradient in gradients]", "list(gradients)"),
        ],
        "losses/test_loss.py::test_a_batch_in_eval_mode_is_the_whole_population": [
            ("objective = self.objective.alone()", "objective = self.objective"),
        ],
        "losses/test_loss.py::test_a_run_goes_on_from_its_state_bit_for_bit": [
            ("return wider(columns[0].dtype, self.table.block.dtype)", "return columns[0].dtype"),
        ],
        "test_contract.py::TestBatch::test_weights_replace_the_mean[SOX(gamma=0.3, safeguard=True)-plain-dim1]": [
            ("[gradient * total for gradient in step.gradients]", "step.gradients"),
            ("total = step.share.sum()", "total = len(step.share)"),
        ],
        "losses/test_loss.py::test_two_ranks_add_up_an_f_with_a_sample": [
            ("else made.extra * size", "else made.extra"),
        ],
        "losses/test_loss.py::test_ranks_that_know_no_rows_have_different_ones": [
            ("if not has_rows:", "if False:"),
        ],
        "test_memory.py::test_batches_and_memories_may_be_larger_than_the_population": [
            (" if call.has_rows else FirstRows()", ""),
        ],
        "test_memory.py::test_states_with_and_without_a_memory": [
            ("elif not of_memory and any(", "elif False and any("),
            ("for key in of_memory:", "for key in ():"),
        ],
        "losses/test_loss.py::test_equal_batches_of_all_ranks_are_warned_of_once": [
            ("[rows] if has_rows and self._has_index else shared", "[rows]"),
        ],
    },
    "losses/baseline_cox.py": {
        "losses/test_baseline_cox.py::test_steps_are_those_of_numpy": [
            ("weight.log() - excess - update.at", "weight.log() - excess - update.new"),
            ("upto_each[past]", "upto_each[(past - 1).clamp(min=0)]"),
        ],
        "losses/test_baseline_cox.py::test_one_huge_risk_weighs_no_more_than_is_likely": [
            ("weight.log() - excess", "weight.log()"),
        ],
        "losses/test_baseline_cox.py::TestStrata::test_sums_and_gradients_are_unbiased": [
            ("flip(1).logcumsumexp(1).flip(1)", "flip(1).view(1, -1).logcumsumexp(1).view(self._shape).flip(1)"),
        ],
    },
    "losses/group_dro.py": {
        "losses/test_unbiased.py::TestGroups::test_batches_at_random": [
            ("counts * self._presence(present, losses)", "counts"),
            ("present | (view.seen > 0)", "present"),
        ],
    },
    "losses/all_rows.py": {
        "losses/test_baseline_cox.py::test_observers_see_all_rows_and_a_frozen_step_writes_none": [
            ("if not self.is_frozen:", "if True:"),
        ],
        "losses/test_baseline_cox.py::test_a_batch_that_no_event_concerns_is_a_zero_with_a_graph": [
            ("new > -math.inf if present is None else present", "new < math.inf"),
        ],
    },
    "placement/_ranks.py": {
        "losses/test_loss.py::test_two_ranks_take_the_steps_of_one": [
            ("group.span(self.anchors)", "group.span(self.examples)"),
            ("diff(prepend=ends[:1] * 0)", "diff(prepend=ends[:1] * 0).flip(0)"),
            ("dist.all_reduce(values, group=self.group.handle)", "pass"),
            ("self.group.span(self.examples", "slice(0, self.examples[0]"),
        ],
    },
}
"""For each file and each test that is to fail: a place in the source, and what stands there instead."""


def changes(old: dict[str, Any], new: dict[str, Any], owner: Any, module: str) -> Iterator[tuple[Any, str, Any, Any]]:
    """Yield owner, attribute, old and new value of all that differs: code of functions, and plain values."""
    for name, one in old.items():
        other = new.get(name)
        one, other = (getattr(part, "fget", None) or getattr(part, "__func__", part) for part in (one, other))
        if isinstance(one, type) and one.__module__ == module:
            yield from changes(dict(vars(one)), dict(vars(other)), one, module)
        elif isinstance(one, FunctionType) and one.__module__ == module and isinstance(other, FunctionType):
            if one.__code__ != other.__code__ and one.__code__.co_freevars == other.__code__.co_freevars:
                yield one, "__code__", one.__code__, other.__code__
        elif isinstance(one, int | float | None) and one != other and not name.startswith("__"):
            yield owner, name, one, other


@contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """Within this context, a module works as if its source were another one."""
    module = importlib.import_module("fcco." + file.removesuffix(".py").replace("/", "."))
    source = Path(str(module.__file__)).read_text()
    if source.count(old) != 1:
        raise ValueError(f"{file} must have {old!r} once; it has it {source.count(old)} times")
    namespace: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), namespace)
    made = list(changes(dict(vars(module)), namespace, module, module.__name__))
    if not made:
        raise ValueError(f"{new!r} in {file} changes nothing")
    try:
        for owner, name, _, value in made:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value, _ in made:
            setattr(owner, name, value)


def first_failure(items: list[pytest.Item]) -> str | None:
    """Run tests up to the first that fails, and return its name."""
    for item in items:
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            return item.nodeid
    return None


class Faults:
    """In place of running the tests, plant each fault and run those that are to notice it."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests without a fault, and then some with each."""
        writer, start = session.config.get_terminal_writer(), time.perf_counter()
        if broken := first_failure(session.items):
            pytest.exit(f"{broken} fails without a fault", 1)
        count, unnoticed = 0, []
        for file, tests in FAULTS.items():
            for test, faults in tests.items():
                items = [item for item in session.items if item.nodeid.startswith(f"tests/{test}")]
                for old, new in faults:
                    with planted(file, old, new):
                        noticed = first_failure(items)
                    count += 1
                    if noticed is None:
                        unnoticed.append(f"{file}, by {test}: {new!r} for {old!r}")
        for line in unnoticed:
            writer.line(f"not noticed in {line}")
        session.testsfailed = len(unnoticed)
        writer.line(f"{count - len(unnoticed)} of {count} faults noticed, in {time.perf_counter() - start:.0f} s")
        return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    named = sorted({test for tests in FAULTS.values() for test in tests})
    options = ["-q", "--no-summary", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}"]
    sys.exit(pytest.main([*options, *(str(TESTS / test) for test in named)], plugins=[Faults()]))
