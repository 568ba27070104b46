"""The lecture as running code: each claim is a function that calls the library, and gets a verdict."""
