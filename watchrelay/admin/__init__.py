"""What an operator's command does and ends."""
