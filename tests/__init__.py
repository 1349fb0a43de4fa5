"""The tests: one folder for each room, named after behaviour."""
