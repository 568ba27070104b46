"""The command line: parses words, calls the library, prints; no arithmetic."""
