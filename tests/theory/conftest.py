import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors here are small: waking a second thread takes longer than their arithmetic."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
