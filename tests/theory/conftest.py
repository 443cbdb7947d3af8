import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread. The tensors are so small that starting a second thread takes longer than the arithmetic."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
