"""Where rows live, and how ranks meet: ``Local``, ``Replicated`` or ``Sharded``.

This package alone knows ``torch.distributed``. Its public functions come out through :mod:`fcco.distributed`.
"""

from fcco.placement._messages import Layout
from fcco.placement._placement import Change, Local, Placement, Replicated, Sharded, place
from fcco.placement._sharded_table import ShardedTable

__all__ = ["Change", "Layout", "Local", "Placement", "Replicated", "Sharded", "ShardedTable", "place"]
