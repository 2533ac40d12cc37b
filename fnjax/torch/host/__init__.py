"""NumPy and SciPy on the host: recorded calls, their results (HostValue), and the modules that loaded files see."""
