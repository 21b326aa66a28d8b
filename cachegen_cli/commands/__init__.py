"""The commands: each parses, calls one library function and delivers the result."""
