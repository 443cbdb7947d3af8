"""Code for other libraries, each in a module of its own, which needs that library: ``fcco.integrations.lightning``."""
