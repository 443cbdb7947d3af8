"""The objectives, each written once."""
