"""Settings shared by all tests."""

from hypothesis import settings

# A loaded 2-core machine breaks hypothesis's 200 ms deadline without any fault in the code.
settings.register_profile("rackline", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("rackline")
