"""What decides how far training gets: the study behind docs/what_decides.md.

    FCCO_DATA=... PYTHONPATH=benchmarks python -m study [--only gamma,visits] [--quick]

Six questions, each asked of Cox's likelihood, NCA, average precision and p-norm push on small real data: which γ, how
many visits of a row, which batch size, which row f is differentiated at, an own term that is exact or sampled, and
which schedule of γ. Every answer is an excess: the exact objective over all training data after training, less its
exact minimum by L-BFGS in float64. Batches, optimizer and objectives are those of ``benchmarks/defaults.py``, and the
steps are compiled (:mod:`study._compiled`). Every setting has an lr of its own, found by one rule
(:func:`study._measure.search`). At last :func:`fcco.diagnostics.advise` is asked in twelve situations, and held
against what the runs showed.

It writes docs/figures/what_decides/*.png, and figures.md there with the same numbers as tables. Finished work is kept
in build/study/cache.jsonl and not done again, unless the code of the study changed. It takes a few minutes of one
core. Without FCCO_DATA it runs on what ships with scikit-learn.
"""
