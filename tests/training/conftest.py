"""The control runs on one thread, like the workers of these tests: more threads change the order of additions."""

import pytest
import torch

from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, prepared


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, whatever OMP_NUM_THREADS says."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT with dropout, and its data; tests train from it, and leave it as it is."""
    folder = tmp_path_factory.mktemp("bert")
    return prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], folder), folder)
