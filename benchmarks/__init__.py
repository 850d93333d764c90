"""Speed and ranking, measured on this machine."""
