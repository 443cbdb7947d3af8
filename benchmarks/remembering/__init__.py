"""A memory of recent outputs against the in-batch loss and the table: the excess of small models, measured.

    FCCO_DATA=... PYTHONPATH=benchmarks python -m remembering [--objective cox] [--half choosing] [--seeds 5] [--quick]

F(w) = mean_i f(g_i(w)), where g_i is a sum over a whole set. A step sees a *fresh* batch of outputs and, in the
settings that are studied here, a *memory*: the last M outputs of each stratum (positives and negatives, events and
censored examples), detached. Fresh outputs and memory together are the *pool*. An entry of a table is the exact
objective after training less its minimum, at the learning rate that is best for it on one grid.

Settings
--------
in-batch
    The batch stands for the population (rule BSGD).
table
    A row u_i for each example, by the rule that the library uses by default (SOAP).
baseline
    ``BaselineCoxLoss``, whose rows belong to event times.
virtual M
    u_i comes from the pool. A fresh output has two roles. As an outer example it is compared with the whole pool, as a
    rival it is compared with the outer examples of the memory, which keep the u_i of the step in which they were fresh.
estimate M
    u_i comes from the pool, and the rest of the gradient is that of the batch.

Words after M change a setting: see :class:`remembering._settings.Setting`.

The choosing half decides which setting is used for an objective; the reporting half tells what it is worth.
"""
