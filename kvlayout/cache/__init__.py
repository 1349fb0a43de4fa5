"""What an engine registers, as frozen values. Imports errors and algebra."""
