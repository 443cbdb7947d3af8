"""What every benchmark shares; a benchmark itself only says what it compares, on what, and which question it asks.

- :mod:`harness.search`: the one search for a learning rate, over a grid;
- :mod:`harness.cache`: jobs whose results are kept, under a key made of their settings and of their source code;
- :mod:`harness.tables`: numbers as text, Markdown and CSV;
- :mod:`harness.exact`: the exact minimum of an objective, by L-BFGS on all data;
- :mod:`harness.training`: the training loop;
- :mod:`harness.timing`: seconds, and ratios to a competitor in the same run;
- :mod:`harness.data` and :mod:`harness.splits`: real data, and their training, validation and test parts;
- :mod:`harness.tasks`, :mod:`harness.objectives` and :mod:`harness.excess`: small models on every objective, trained by
  the losses of the library, and how far from the minimum they end.

Modules are imported one by one, since some need scikit-learn and SciPy, and a measurement of speed should not.
"""
