"""What an HTTP user calls."""
