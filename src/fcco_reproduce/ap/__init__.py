"""The study ``fcco reproduce ap``: the paper's figures and table of average precision, on CIFAR-10 and CIFAR-100."""

from pathlib import Path

from fcco_reproduce._study import Study
from fcco_reproduce.ap import _comparison, _sweeps

STUDY = Study(
    name="ap",
    title="Average precision",
    introduction=(
        "The AP experiment of Wang and Yang (ICML 2022, section 5.1 and appendix), on CIFAR-10 and CIFAR-100. The "
        "lower half of the classes is negative; the upper half is positive and cut to 2%. There are 20,000 "
        "negatives and 400 positives to train on, 5,000 and 100 to validate; the test set is whole and balanced. A "
        "ResNet is pre-trained with cross entropy, its last layer is drawn anew, and all of it is trained on the "
        "squared hinge with margin 0.6 of sigmoid scores, with random crops and flips, weight decay 0.0002, and a "
        "tenth of the rate from half of the steps on, a hundredth from three quarters on. **It is a small scale, for "
        "two cores, not the paper's**: a ResNet of four blocks with 8 to 64 channels, and 5,000 steps in (iv) and 500 "
        "in the others, instead of 125,000."
    ),
    making=(
        "This page, its figures and its tables are written by\n\n"
        "    fcco reproduce ap --stored docs/ap/runs.jsonl --docs docs/ap.md\n\n"
        "with {seeds} seeds, from 0 on, of which none is left out. `docs/ap/runs.jsonl` holds every finished run, "
        "with a digest of the code that made it. The command takes what is there and runs the rest; without "
        "`--stored` it runs everything. The first convolution of the network has stride 2; it is pre-trained for "
        "1,200 steps on balanced batches (the paper does not say how long, nor on which batches, it pre-trains); "
        "batches have 32 + 32 images; train and validation measures are of all positives and 1,000 negatives, each "
        "standing for several. With 100 positives to validate on, choices by "
        "validation are noisy. The paper's scale, a ResNet-18 (CIFAR-100: ResNet-34) and 200 epochs, needs a GPU "
        "and has not been run for this page:\n\n"
        "    fcco reproduce ap --scale paper --device cuda --workers 1\n\n"
        "An earlier form of (iv), with 500 steps (now `--scale small`), chose an lr of 3, the largest of its grid, "
        "for SOAP and MOAP.\n\n"
        "Data is read from `FCCO_DATA`, or downloaded; where CIFAR-100 cannot be had it is left out, and the page "
        "says so. `--quick` takes made images, and proves nothing. A run that is stopped continues from its last "
        "checkpoint."
    ),
    folder=Path(__file__).parent,
    makers={
        "split": _sweeps.outer_batch,
        "batch": _sweeps.batch,
        "gamma": _sweeps.gamma,
        "methods": _comparison.experiment,
    },
    seeds=3,
    devices=("cpu", "cuda", "mps"),
)

__all__ = ["STUDY"]
