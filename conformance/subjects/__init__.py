"""Adapters for implementations that come with the kit."""
