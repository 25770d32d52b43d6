"""What-if: applies proposed bus rules to recorded traffic."""
