"""What is shipped, and what importing it brings along."""
