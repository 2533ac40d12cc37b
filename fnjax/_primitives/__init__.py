"""Rules on flat lists of arrays, and the primitives that represent them; nothing here depends on ctx or classes."""
