"""stub"""
class Draw:
    def __init__(self, k): pass
