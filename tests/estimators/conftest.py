"""Common to the tests of the estimators."""

# The scripts that made the golden values need packages that the tests do not.
collect_ignore_glob = ["golden/make_*.py"]
