"""From the text of files to the text of their ports."""
