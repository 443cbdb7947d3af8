import pytest
from ranks import run_ranks
from two_ranks import everything


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """What either of two ranks has made of everything they were asked."""
    return run_ranks(everything, 2, tmp_path_factory.mktemp("ranks"))
