"""How ranks meet: the messages between them, and a table of which each keeps a part.

This package alone knows ``torch.distributed``. Its public functions come out through :mod:`fcco.distributed`.
"""
