"""The command line: parses words, calls the library and prints."""
