"""What fnjax says when something is wrong."""
