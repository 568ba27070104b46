"""The lecture's claims, each checked by a function that calls the library."""
