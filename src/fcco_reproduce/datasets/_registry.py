"""Every file that the loaders read: where it was published, and what is known of its bytes.

Checksums are of the published original wherever one is known from an independent place; where only the content of a
compressed file is, that stands as ``content``. A file of which neither is known is not downloaded: it is read where a
user has put it, and called unverified.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file.

    Attributes:
        path: under ``FCCO_DATA`` and under the cache, with the data set's folder.
        urls: of the published original, the first one preferred; none for a copy that nobody published.
        size: bytes of the published original.
        sha256: of the published original.
        content: sha256 of what the published original holds when decompressed.
        rebuilt: sha256 of a copy that was made from other files; accepted under ``FCCO_DATA`` only.
        subset: the file holds some of the published rows only.
        rows: of a table of which no checksum is known.
    """

    path: str
    urls: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    content: str | None = None
    rebuilt: str | None = None
    subset: bool = False
    rows: int | None = None


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
_UCI = "https://archive.ics.uci.edu"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
_ESL = ("https://hastie.su.domains/ElemStatLearn/datasets", "https://web.stanford.edu/~hastie/ElemStatLearn/datasets")
_GITHUB = "https://raw.githubusercontent.com"
_DEEPSURV = f"{_GITHUB}/jaredleekatzman/DeepSurv/41eed003e5b892c81e7855e400861fa7a2d9da4f/experiments/data"
_SKSURV = f"{_GITHUB}/sebp/scikit-survival/v0.28.0/sksurv/datasets/data"
_LIFELINES = f"{_GITHUB}/CamDavidsonPilon/lifelines/v0.30.3/lifelines/datasets"
_LIGHTGBM = f"{_GITHUB}/microsoft/LightGBM/bae0b7ba953341a32b2a9c5c5c437a1b976f576f/examples/lambdarank"
_CIFAR = "https://www.cs.toronto.edu/~kriz"


def _ijcnn1(name: str, content: str) -> File:
    # LIBSVM's text is known by its git blob, the bytes of LIBSVM's compression are not.
    return File(f"ijcnn1/{name}.bz2", (f"{_LIBSVM}/binary/{name}.bz2",), content=content)


def _mnist(name: str, size: int, sha256: str) -> File:
    return File(f"mnist/{name}", tuple(f"{site}/{name}" for site in _MNIST), size, sha256)


def _zip_code(name: str, size: int, rows: int, rebuilt: str) -> File:
    return File(f"usps/{name}", tuple(f"{site}/{name}" for site in _ESL), size, rebuilt=rebuilt, rows=rows)


def _deepsurv(folder: str, name: str, size: int, sha256: str) -> File:
    return File(f"survival/deepsurv/{name}", (f"{_DEEPSURV}/{folder}/{name}",), size, sha256)


def _sksurv(name: str, size: int, sha256: str) -> File:
    return File(f"survival/sksurv/{name}", (f"{_SKSURV}/{name}",), size, sha256)


def _lifelines(name: str, size: int, sha256: str) -> File:
    return File(f"survival/lifelines/{name}", (f"{_LIFELINES}/{name}",), size, sha256)


def _lightgbm(name: str, size: int, sha256: str) -> File:
    path = f"ltr/lightgbm-lambdarank/{name}"
    return File(path, (f"{_LIGHTGBM}/{name}",), size, sha256, content=sha256)


def _cifar(folder: str, name: str, size: int, sha256: str) -> File:
    return File(f"{folder}/{name}", (f"{_CIFAR}/{name}",), size, sha256)


def _webp(batch: str, sha256: str) -> File:
    return File(f"cifar10/{batch}.webp.zip", rebuilt=sha256)


_ALL = (
    _ijcnn1("ijcnn1", "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f"),
    _ijcnn1("ijcnn1.tr", "9454b7a9d98fcb83e4b79f1094b996aec75909677a77eede6094a9bb4f71c461"),
    _ijcnn1("ijcnn1.val", "87b64ee77f4e0cb0d04e93ec7c292a669a8ad9f4ccfd85034bfef4810526b34a"),
    _ijcnn1("ijcnn1.t", "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8"),
    File(
        "covtype/covtype.data.gz",
        (
            f"{_UCI}/ml/machine-learning-databases/covtype/covtype.data.gz",
            "https://ndownloader.figshare.com/files/5976039",
        ),
        size=11_240_707,
        sha256="614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",  # as pinned by scikit-learn
        content="0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
    ),
    _mnist("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    _mnist("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    _mnist("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    _mnist("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    File(
        "usps/usps.bz2",
        (f"{_LIBSVM}/multiclass/usps.bz2",),
        size=6_579_383,
        # As in a Git LFS pointer beside one of usps.t, with the published sizes of both.
        sha256="3771e9dd6ba685185f89867b6e249233dd74652389f263963b3b741e994b034f",
        rebuilt="ea32ca436f09044f687d88785e23e20b16351cdf9e2257ce7d3e4eb4ad0432d9",
    ),
    File(
        "usps/usps.t.bz2",
        (f"{_LIBSVM}/multiclass/usps.t.bz2",),
        size=1_831_726,
        sha256="a9c0164e797d60142a50604917f0baa604f326e9a689698763793fa5d12ffc4e",
    ),
    _zip_code("zip.train.gz", 1_829_071, 7_291, "d8fde9bb9728740a5d165dbfaa86aabf131794879e728d1dd9e42391bfd16d93"),
    _zip_code("zip.test.gz", 439_208, 2_007, "29e2e017b770c2a589ec3fdaca73a913d29cf1fa9e6b26ab2a9d41a0e1323e17"),
    File(
        "sensorless/Sensorless_drive_diagnosis.txt",
        (
            f"{_UCI}/ml/machine-learning-databases/00325/Sensorless_drive_diagnosis.txt",
            f"{_UCI}/static/public/325/dataset+for+sensorless+drive+diagnosis.zip",
        ),
        rows=58_509,  # no checksum is known
    ),
    File(
        "sensorless/sensorless_balanced2200.txt.gz",
        rebuilt="08d5978f66ab9151600cd8333584a0d8db117a257ac75c66df3a14ab3be98a90",
        subset=True,
    ),
    File(
        "sensorless/sensorless_uci_head5748.txt.gz",
        rebuilt="158851a97b1b2c92c776bb753e9f4b98261bb1539829cd5eb5b836134647f566",
        subset=True,
    ),
    _webp("data_batch_1", "d2ec60202bdabdb49304abfa26cd91c4b64b977b1c40af0722efee4ba2bd47cd"),
    _webp("data_batch_2", "bd72ac43d5a2887d8787e89d1e2b35953b650414096f2ef44a35e944764f03aa"),
    _webp("data_batch_3", "6e61589c0708b6247fa733251c079d08d09bf3241b09c1f2dd16363421723981"),
    _webp("data_batch_4", "3ddf07f81c72927c8b72a168dc94e677fe7107322867dbfba926db5d565dff94"),
    _webp("data_batch_5", "96dbed9db524d20c0b7369dc062026bd57bc700e6bf946cb4e4c9b0457e90d44"),
    _webp("test_batch", "fe001a6b67af2ca942367fc5ad3ef8870b678db4bd104cf2700e431935f17589"),
    # As pinned by TensorFlow Datasets.
    _cifar(
        "cifar10",
        "cifar-10-binary.tar.gz",
        170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    _cifar(
        "cifar100",
        "cifar-100-binary.tar.gz",
        168_513_733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    _deepsurv(
        "metabric",
        "metabric_IHC4_clinical_train_test.h5",
        90_016,
        "e959131973c906c7e8b1e662c81160914768156a6da145a9bfed9b9ee8bf3e72",
    ),
    _deepsurv(
        "support",
        "support_train_test.h5",
        574_112,
        "e398f49930e4efc4ecd675a72ac547f0d1ae25ccf13f6a1024cded12ea88a83e",
    ),
    _deepsurv(
        "gbsg",
        "gbsg_cancer_train_test.h5",
        86_592,
        "bd455f4395322a8b23040c15cedbef00ad51a447d02c95f1f1d686a6b196484b",
    ),
    _deepsurv("whas", "whas_train_test.h5", 58_656, "2ed86f073fdbe34be10f7e485eeaf67b61004521390c46b9a18aa9b82d5e8f9c"),
    # The checksums of the files in the wheels of scikit-survival 0.28.0 and lifelines 0.30.3.
    _sksurv("GBSG2.arff", 26_204, "8c1ba1df4d80216b58695d6bbc9f51284664ab37124e101d56df089851645b04"),
    _sksurv("actg320.arff", 45_446, "f0613690853c36fc7b9b936cfae4c95ba460b64df1989cc1ccc126b729eae455"),
    _sksurv(
        "breast_cancer_GSE7390-metastasis.arff",
        264_743,
        "233f4c1c06b2ee299fffcba0f9881f6ed66a3566ccbec30b5004f0d298b52570",
    ),
    _sksurv("flchain.arff", 343_058, "bf2600ec437dd19071f73bdad82de681780457d1141ec36ed551b0026e6e5773"),
    _sksurv("veteran.arff", 5_260, "71dbc9e235f3cc2ed10b3a254e39f985c092346d1c845736ed21b13fbe263456"),
    _sksurv("whas500.arff", 27_772, "f64040c91398875137822eca306a927208df6896808cd9764af7065722fa53d6"),
    _lifelines("kidney_transplant.csv", 13_399, "5e276e73eb144cba9725b4353a09a81f88b80db6fdbfe4ac841ca4a2f54eb91c"),
    _lifelines("larynx.csv", 1_395, "0692a7d3df379e973a67915964c538718b7a54a22287647b0ae86e895df18fc1"),
    _lifelines("lung.csv", 9_041, "16ebd02c38bbb5708186d600cff80ad84d0764974619436f83ba4a605e77eb44"),
    _lifelines("rossi.csv", 8_693, "0214400170e07f3015a285edca2014cac0dae8aac125fcbaad642490e05f892c"),
    _lifelines("stanford_heart.csv", 8_859, "1d64bd4aa26343a8039afc7128224b47570e209f172aec1336ee1b5bcb4a5953"),
    _lightgbm("rank.train", 2_479_271, "a0c7201c89120879c14a5059e091f441cbf2a29b8aaef363885ccb1a530448df"),
    _lightgbm("rank.test", 649_930, "3b1219ce117a0a36d2f76c02de7e7831c1d79af0d40f5195c03178bbe26c824b"),
    _lightgbm("rank.train.query", 580, "40cb5fef637229311cd30fab13cb7fb633b023e86a87ff04ec55db420143d6af"),
    _lightgbm("rank.test.query", 146, "36dca82ba3bf99201bac3987b00a8fbf6fe5f563e9fa6d0da90e783710a32df4"),
)

FILES = {file.path: file for file in _ALL}
