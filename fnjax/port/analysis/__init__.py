"""The evaluation of functions: rules say what each value is, until a fixpoint."""
