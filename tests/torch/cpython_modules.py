"""Modules of CPython's own tests that pass where fnjax.torch loads them, but for tests listed with a reason.

Of each module: its tests that pass in plain Python and fail in a loaded module, as `Class.test`, with wildcards.
"""

import sys

NAME = "the test expects the module's own name in a text, and that of a loaded module is private"
BUILTINS = "the test changes the builtins of all modules, and a loaded module has builtins of its own"
ITERATORS = "while JAX traces, the iterator of a list or tuple is one whose position branches merge"
GLOBALS = "the test runs a function's code with other globals, which lack what the lowered code calls"
LINES = (
    "the test traces the lines of all functions that are called, and lowered code calls others for a match statement"
)
REPLACED = "JAX imports typing_extensions, which replaces this function of typing"

# Modules of the library and of built-in types: what is loaded is the text of their tests, plain code such as the other
# modules have, and they take half of the time. They run on the newer versions of Python only.
LIBRARY = frozenset({
    "test_binop", "test_bisect", "test_bool", "test_collections", "test_complex", "test_decimal", "test_defaultdict",
    "test_deque", "test_dict", "test_dictviews", "test_enumerate", "test_float", "test_format", "test_fractions",
    "test_graphlib", "test_hash", "test_heapq", "test_int", "test_iterlen", "test_itertools", "test_json",
    "test_list", "test_math", "test_numeric_tower", "test_ordered_dict", "test_pow", "test_random", "test_range",
    "test_reprlib", "test_set", "test_sort", "test_statistics", "test_string", "test_textwrap", "test_tuple",
    "test_userdict", "test_userlist", "test_weakref", "test_weakset",
})  # fmt: skip

MODULES: dict[str, dict[str, str]] = {
    "test_abc": {},
    "test_asyncgen": {},
    "test_augassign": {},
    "test_baseexception": {},
    "test_binop": {},
    "test_bisect": {},
    "test_bool": {},
    "test_builtin": {"BuiltinTest.test_eval_builtins_mapping_reduce": ITERATORS},
    "test_call": {},
    "test_class": {},
    "test_collections": {},
    "test_compare": {},
    "test_complex": {},
    "test_contains": {},
    "test_context": {},
    "test_contextlib": {},
    "test_contextlib_async": {},
    "test_copy": {},
    "test_coroutines": {},
    "test_dataclasses": {},
    "test_decimal": {},
    "test_decorators": {},
    "test_defaultdict": {},
    "test_deque": {},
    "test_descr": {"ClassPropertiesAndMethods.test_slots": NAME} if sys.version_info >= (3, 12) else {},
    "test_dict": {},
    "test_dictcomps": {},
    "test_dictviews": {},
    "test_dynamic": {},
    "test_dynamicclassattribute": {},
    "test_enum": {},
    "test_enumerate": {},
    "test_except_star": {},
    "test_exception_group": {},
    "test_exception_variations": {},
    "test_exceptions": {},
    "test_extcall": {"extcall": NAME},
    "test_float": {},
    "test_format": {},
    "test_fractions": {},
    "test_fstring": {},
    "test_funcattrs": {"FunctionPropertiesTest.test___builtins__": GLOBALS},
    "test_functools": {},
    "test_generator_stop": {},
    "test_generators": {},
    "test_genericalias": {},
    "test_genericclass": {},
    "test_genexps": {},
    "test_global": {},
    "test_grammar": {},
    "test_graphlib": {},
    "test_hash": {},
    "test_heapq": {},
    "test_index": {},
    "test_int": {},
    "test_isinstance": {},
    "test_iter": {"TestCase.test_reduce_mutating_builtins_iter": BUILTINS},
    "test_iterlen": {},
    "test_itertools": {},
    "test_json": {},
    "test_keywordonlyarg": {},
    "test_list": {},
    "test_listcomps": {},
    "test_math": {},
    "test_metaclass": {"metaclass.__test__.doctests": NAME},
    "test_named_expressions": {},
    "test_numeric_tower": {},
    "test_operator": {},
    "test_ordered_dict": {},
    "test_patma": {
        f"TestTracing.{name}": LINES
        for name in (
            "test_default_capture",
            "test_default_wildcard",
            "test_no_default",
        )
    },
    "test_positional_only_arg": {},
    "test_pow": {},
    "test_print": {},
    "test_property": {},
    "test_raise": {},
    "test_random": {},
    "test_range": {},
    "test_reprlib": {},
    "test_richcmp": {},
    "test_scope": {},
    "test_set": {},
    "test_setcomps": {},
    "test_slice": {},
    "test_sort": {},
    "test_statistics": {},
    "test_string": {},
    "test_subclassinit": {},
    "test_super": {},
    "test_textwrap": {},
    "test_tuple": {},
    "test_type_annotations": {},
    "test_types": {},
    "test_typing": {"typing._collect_parameters": REPLACED},
    "test_unary": {},
    "test_unpack": {"unpack.__test__.doctests": NAME},
    "test_unpack_ex": {"unpack_ex.__test__.doctests": NAME},
    "test_userdict": {},
    "test_userlist": {},
    "test_weakref": {},
    "test_weakset": {},
    "test_with": {},
    "test_yield_from": {},
}
