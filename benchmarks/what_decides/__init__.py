"""What decides how far training gets: the study behind docs/what_decides.md.

    FCCO_DATA=... PYTHONPATH=benchmarks python -m what_decides [--only gamma,visits] [--quick]

Six questions, each asked of Cox's likelihood, NCA, average precision and p-norm push on small real data: which γ, how
many visits of a row, which batch size, which row f is differentiated at, an own term that is exact or sampled, and
which schedule of γ. Every answer is an excess: the exact objective over all training data after training, less its
exact minimum by L-BFGS in float64. Batches, optimizer and objectives are those of :mod:`harness.excess`, and the
steps are compiled (:mod:`what_decides._compiled`). Every variant has a learning rate of its own, found on one
grid (:mod:`harness.search`). At last :func:`fcco.diagnostics.advise` is asked in twelve situations, and held against
what the runs showed.

It writes docs/figures/what_decides/*.svg, and figures.md there with the same numbers as tables. Finished work is kept
in build/what_decides/cache.jsonl and not done again, unless the code that it leads to changed. It takes ten to twenty
minutes of one core. Without FCCO_DATA it runs on what ships with scikit-learn.
"""
