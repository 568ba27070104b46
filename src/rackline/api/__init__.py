"""Questions and answers as data: one dataclass per question, whose fields are its options."""
