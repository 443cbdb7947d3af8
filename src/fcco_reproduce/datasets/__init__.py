"""The data sets of the paper's experiments and a few more: downloaded once and verified, or read from ``FCCO_DATA``.

A loader returns NumPy arrays, with the files they came from and how far each is known to be the published one. With
the variable ``FCCO_DATA`` set, nothing is downloaded: files are read from the folder that it names. Without it, the
published original is downloaded into the platform's cache folder, which needs ``pip install 'fcco[reproduce]'``.
"""

from fcco_reproduce.datasets._fetch import cache_folder
from fcco_reproduce.datasets._formats import read_idx, read_letor, read_libsvm
from fcco_reproduce.datasets._images import load_cifar10, load_cifar100
from fcco_reproduce.datasets._prepare import split_covtype, split_ijcnn1, split_imbalanced, split_nca
from fcco_reproduce.datasets._ranking import load_letor, load_lightgbm_ranking
from fcco_reproduce.datasets._survival import load_survival
from fcco_reproduce.datasets._tables import load_covtype, load_ijcnn1, load_mnist, load_sensorless, load_usps
from fcco_reproduce.datasets._types import Classification, DamagedFileError, Ranking, Source, Split, Survival

__all__ = [
    "Classification",
    "DamagedFileError",
    "Ranking",
    "Source",
    "Split",
    "Survival",
    "cache_folder",
    "load_cifar10",
    "load_cifar100",
    "load_covtype",
    "load_ijcnn1",
    "load_letor",
    "load_lightgbm_ranking",
    "load_mnist",
    "load_sensorless",
    "load_survival",
    "load_usps",
    "read_idx",
    "read_letor",
    "read_libsvm",
    "split_covtype",
    "split_ijcnn1",
    "split_imbalanced",
    "split_nca",
]
