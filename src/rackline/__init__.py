"""rackline."""
