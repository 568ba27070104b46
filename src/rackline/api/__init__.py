"""Questions as data: each is one dataclass whose fields are its options, and an answer is its question and result."""
