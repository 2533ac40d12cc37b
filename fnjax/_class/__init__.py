"""The class that users derive from."""
