"""Loading of PyTorch source: files and packages, blocks in ports, and the modules that loaded files see."""
