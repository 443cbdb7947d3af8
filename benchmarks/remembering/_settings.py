"""What a step does with a batch, by a short name."""

from __future__ import annotations

from dataclasses import dataclass

TABLE_RATES = {"cox": 0.7, "average_precision": 0.7, "p_norm_push": 0.5, "partial_auc": 0.7, "nca": 0.9}
TRUST = 8.0
MODES = {"in-batch": 0, "table": 0, "estimate": 1, "virtual": 2, "baseline": 3}


@dataclass(frozen=True)
class Setting:
    """A setting by name, such as "virtual 256" or "virtual 256 table .7".

    Words that may follow the size of the memory:

    table .7
        u_i is a row of a table, updated by SOAP at this rate with the estimate from the pool.
    recomputed
        Outer examples of the memory have a new u_i from the pool in every step.
    refreshed
        Outer examples of the memory move their u_i towards the estimate from the fresh batch before it is used, at a
        rate that is the share of the batch in the pool.
    limited
        If the estimate from the m fresh rivals of a remembered example exceeds its u_i by more than a factor of
        1 + 8 (1 / sqrt(m) + 1 / m), its part of the rival side is scaled down to that factor.
    pairs
        The rival side also averages over the fresh outer examples.
    natural
        Batches are drawn at random, as many as there are balanced ones, and each stratum weighs by its expected number.
    blend .5
        The gradient is this share of "virtual" and the rest of "estimate".

    A size such as "16b" counts batches: it is 16 times the expected number of fresh members of the stratum.
    """

    name: str

    @property
    def words(self) -> list[str]:
        return self.name.split()

    @property
    def mode(self) -> int:
        """The kind of the gradient, a value of :data:`MODES`."""
        return MODES[self.words[0]]

    def size(self, expected: float) -> int:
        """Return the size M of the memory of a stratum with this expected number of fresh members."""
        if self.mode not in (1, 2):
            return 0
        text = self.words[1]
        return max(int(float(text[:-1]) * expected), 1) if text.endswith("b") else int(text)

    def rate(self, objective: str) -> float:
        """Return the rate of the table, 1 for none."""
        if self.words[0] == "table":
            return TABLE_RATES[objective]
        return self._number("table", 1.0)

    @property
    def blend(self) -> float:
        return self._number("blend", 1.0)

    @property
    def recomputed(self) -> bool:
        return "recomputed" in self.words

    @property
    def refresh(self) -> float:
        """How many times the share of the batch in the pool the rate of a remembered u_i is."""
        return float("refreshed" in self.words)

    @property
    def limit(self) -> float:
        return TRUST if "limited" in self.words else 0.0

    @property
    def pairs(self) -> bool:
        return "pairs" in self.words

    @property
    def natural(self) -> bool:
        return "natural" in self.words

    def _number(self, word: str, default: float) -> float:
        words = self.words[1:]
        return float(words[words.index(word) + 1]) if word in words else default
