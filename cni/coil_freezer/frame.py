"""The process around the plugin's modules, in C: an interpreter with nothing but these modules in it.

What is done here instead of by Python's own start, and why (each measured, see DESIGN.md):

* Only the core of the interpreter is initialized, without import system, encodings and standard streams.
* The tables of frozen modules, whose strings the interpreter would intern at each start, are empty.
* From `posix` and `time` come single functions, from other builtin modules only the constants that are used: filling
  these modules takes longer than the whole RPC. The linker's --wrap leads PyModule_AddIntConstant here for that.
* A module is made when it is first imported: VERSION and refusals never come to the network's half.
* No table of stack frames is registered, which gcc 13 and newer read as a whole at each start of a static program: it
  is for exceptions of C++ and for threads that are cancelled.
* The cyclic collector stays off, from the first object on. The process ends before it could be of use.

The same source is for every version of Python that the project runs on: what is not in the public headers is declared
by its name alone, or by the version's own private header. `_Py_Deepfreeze_*` are called by versions before 3.13.
"""

import sys

from coil_freezer.error import FreezeError
from coil_freezer.program import MAIN, Program

WRAPPED = ("PyModule_AddIntConstant", "_PyGC_InitState", "__register_frame_info", "__deregister_frame_info")
"""Functions that the frame takes the place of, by the linker's --wrap."""

_PICKED = {
    "posix": frozenset({"_exit", "access", "close", "environ", "listdir", "mkdir", "open", "read", "write"}),
    "time": frozenset({"monotonic"}),
}
"""What can be had of a module that was not executed: functions that use nothing of it, and what the frame sets."""
_EXECUTED = frozenset({"_socket", "select"})
_SET_BY_FRAME = frozenset({"environ"})

_FRAME = r"""
#define Py_BUILD_CORE 1
#include <Python.h>
#include "internal/pycore_gc.h"
#include <marshal.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Import tables: empty, as nothing is imported by name. */
struct _inittab _PyImport_Inittab[] = {{0}};
struct _module_alias;
static const struct _frozen no_modules[] = {{0}};
static const void *const no_aliases[2];
const struct _frozen *_PyImport_FrozenBootstrap = no_modules;
const struct _frozen *_PyImport_FrozenStdlib = no_modules;
const struct _frozen *_PyImport_FrozenTest = no_modules;
const struct _frozen *PyImport_FrozenModules = NULL;
const struct _module_alias *_PyImport_FrozenAliases = (const struct _module_alias *)no_aliases;
int _Py_Deepfreeze_Init(void) { return 0; }
void _Py_Deepfreeze_Fini(void) {}

static const char *const constants[] = {%(constants)s NULL};

int __real_PyModule_AddIntConstant(PyObject *, const char *, long);
int __wrap_PyModule_AddIntConstant(PyObject *module, const char *name, long value)
{
    for (const char *const *wanted = constants; *wanted; wanted++)
        if (!strcmp(*wanted, name))
            return __real_PyModule_AddIntConstant(module, name, value);
    return 0;
}

void __real__PyGC_InitState(struct _gc_runtime_state *);
void __wrap__PyGC_InitState(struct _gc_runtime_state *state)
{
    __real__PyGC_InitState(state);
    state->enabled = 0;
}

void __wrap___register_frame_info(const void *begin, void *object)
{
    (void)begin;
    (void)object;
}

void *__wrap___deregister_frame_info(const void *begin)
{
    (void)begin;
    return NULL;
}

/* The named functions of a builtin module, in a module of the same name that is not executed. */
static PyObject *pick(const char *name, PyObject *definition, const char *const *functions)
{
    PyObject *module = PyModule_New(name);
    if (module == NULL || definition == NULL)
        return NULL;
    for (; *functions; functions++) {
        PyMethodDef *method = ((PyModuleDef *)definition)->m_methods;
        while (method->ml_name && strcmp(method->ml_name, *functions))
            method++;
        PyObject *function = method->ml_name ? PyCFunction_New(method, module) : NULL;
        if (function == NULL || PyModule_AddObject(module, *functions, function) < 0)
            return NULL;
    }
    return module;
}

/* A builtin module as the import system would make it. */
static PyObject *execute(const char *name, PyObject *definition)
{
    if (definition == NULL || !PyObject_TypeCheck(definition, &PyModuleDef_Type))
        return definition; /* of the old kind, executed already */
    PyObject *spec = PyModule_New(name);
    PyObject *text = PyUnicode_FromString(name);
    if (spec == NULL || text == NULL || PyObject_SetAttrString(spec, "name", text) < 0)
        return NULL;
    PyObject *module = PyModule_FromDefAndSpec((PyModuleDef *)definition, spec);
    if (module == NULL || PyModule_ExecDef(module, (PyModuleDef *)definition) < 0)
        return NULL;
    return module;
}

static PyObject *environment(void)
{
    PyObject *variables = PyDict_New();
    for (char **entry = environ; variables && entry && *entry; entry++) {
        char *equals = strchr(*entry, '=');
        if (equals == NULL)
            continue;
        PyObject *name = PyBytes_FromStringAndSize(*entry, equals - *entry);
        PyObject *value = PyBytes_FromString(equals + 1);
        /* The first of two variables of one name counts, as for getenv(3). */
        if (name == NULL || value == NULL || PyDict_SetDefault(variables, name, value) == NULL)
            return NULL;
    }
    return variables;
}

%(makers)s

static PyObject *make_encodings(void)
{
    /* Where the search for a codec would begin, when text is not UTF-8. Those in the interpreter are enough. */
    return PyModule_New("encodings");
}

%(codes)s

static const struct {
    const char *name;
    PyObject *(*make)(void);
    const unsigned char *code;
    Py_ssize_t size;
} table[] = {
    {"encodings", make_encodings, NULL, 0},
%(table)s
    {0}};

/* Executes a module of the plugin, which is in sys.modules from then on. */
static PyObject *execute_code(PyObject *name, const unsigned char *code, Py_ssize_t size)
{
    PyObject *module = PyModule_NewObject(name);
    if (module == NULL || PyObject_SetItem(PyImport_GetModuleDict(), name, module) < 0)
        return NULL;
    PyObject *names = PyModule_GetDict(module);
    if (PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) < 0)
        return NULL;
    PyObject *object = PyMarshal_ReadObjectFromString((const char *)code, size);
    if (object == NULL || PyEval_EvalCode(object, names, names) == NULL)
        return NULL;
    return module;
}

static PyObject *import_module(PyObject *name)
{
    PyObject *module = PyDict_GetItemWithError(PyImport_GetModuleDict(), name);
    if (module != NULL || PyErr_Occurred()) {
        Py_XINCREF(module);
        return module;
    }
    for (size_t index = 0; table[index].name; index++) {
        if (PyUnicode_CompareWithASCIIString(name, table[index].name))
            continue;
        if (table[index].make == NULL)
            return execute_code(name, table[index].code, table[index].size);
        module = table[index].make();
        if (module == NULL || PyObject_SetItem(PyImport_GetModuleDict(), name, module) < 0)
            return NULL;
        return module;
    }
    return PyErr_Format(PyExc_ImportError, "no module %%U", name);
}

/* builtins.__import__: name, globals, locals, fromlist, level. The module itself is right for all imports but
   `import a.b`, which the plugin does without. */
static PyObject *import_statement(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (count < 1 || !PyUnicode_Check(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "__import__ of something else than a name");
    return import_module(arguments[0]);
}

static PyMethodDef import_method = {"__import__", (PyCFunction)(void (*)(void))import_statement, METH_FASTCALL, NULL};

/* The registry of codecs' error handlers, without which text that is not UTF-8 cannot be refused. Interpreters that do
   not have this function make theirs when it is first asked. */
__attribute__((weak)) PyStatus _PyCodec_InitRegistry(PyInterpreterState *);

/* What some versions do after the core and others in it. True if all is well. */
static int complete_core(void)
{
    PyObject *import = PyCFunction_New(&import_method, NULL);
    if (import == NULL || PyDict_SetItemString(PyEval_GetBuiltins(), "__import__", import) < 0)
        return 0;
    if (_PyCodec_InitRegistry != NULL && PyStatus_Exception(_PyCodec_InitRegistry(PyInterpreterState_Get())))
        return 0;
    /* Longer numbers are refused: to read them would take long, and a module that is not here. */
    PyObject *limit = PySys_GetObject("set_int_max_str_digits");
    return limit != NULL && PyObject_CallFunction(limit, "i", %(digits)d) != NULL;
}

static void run(void)
{
    PyObject *name = PyUnicode_FromString("%(main)s");
    if (name == NULL || !complete_core())
        return;
    PyObject *module = import_module(name);
    if (module != NULL)
        PyObject_CallMethod(module, "main", NULL); /* which ends the process */
}

static PyStatus initialize(void)
{
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    before.configure_locale = 0;
    before.coerce_c_locale = 0;
    before.allocator = PYMEM_ALLOCATOR_MALLOC;
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return status;
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config._init_main = 0;
    config._install_importlib = 0;
    config.code_debug_ranges = 0;
    config.configure_c_stdio = 0;
    config.faulthandler = 0;
    config.install_signal_handlers = 0;
    config.module_search_paths_set = 1;
    config.parse_argv = 0;
    config.pathconfig_warnings = 0;
    config.site_import = 0;
    /* A fixed seed: no dictionary here lives long enough to be attacked, and no randomness is waited for. */
    config.use_hash_seed = 1;
    return Py_InitializeFromConfig(&config);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    if (!PyStatus_Exception(initialize()))
        run();
    static const char failure[] =
        "{\"cniVersion\":\"1.0.0\",\"code\":999,\"msg\":\"the plugin cannot start\",\"details\":\"\"}";
    if (write(STDOUT_FILENO, failure, sizeof failure - 1) < 0)
        _exit(2);
    if (PyErr_Occurred())
        PyErr_Print();
    _exit(1);
}
"""


def render_frame(program: Program) -> str:
    """The C source of the executable, for the headers of the running interpreter's version.

    Raises FreezeError when the program uses a module, or a part of one, that the frame does not provide, or that this
    interpreter has in a file of its own.
    """
    for module, names in program.builtins.items():
        if module not in _EXECUTED and not names <= _PICKED.get(module, frozenset()):
            missing = ", ".join(sorted(names - _PICKED.get(module, frozenset())))
            raise FreezeError(f"the executable has no {missing} from the module {module}")
    if elsewhere := program.builtins.keys() - set(sys.builtin_module_names):
        raise FreezeError(f"this Python has {', '.join(sorted(elsewhere))} not built in; use Debian's")
    builtins = sorted(program.builtins)
    executed = [name for module in builtins if module in _EXECUTED for name in sorted(program.builtins[module])]
    return _FRAME % {
        "codes": "\n".join(_array(f"code_{index}", code) for index, code in enumerate(program.modules.values())),
        "constants": "".join(f'"{name}", ' for name in executed),
        "digits": sys.int_info.default_max_str_digits,
        "main": MAIN,
        "makers": "\n".join(_maker(module, program.builtins[module]) for module in builtins),
        "table": "\n".join(
            [
                *(f'    {{"{module}", make_{module}, NULL, 0}},' for module in builtins),
                *(
                    f'    {{"{module}", NULL, code_{index}, sizeof code_{index}}},'
                    for index, module in enumerate(program.modules)
                ),
            ]
        ),
    }


def _maker(module: str, names: frozenset[str]) -> str:
    """The function that makes a builtin module when it is first imported."""
    declaration = f"PyObject *PyInit_{module}(void);\nstatic PyObject *make_{module}(void)\n"
    if module in _EXECUTED:
        return f'{declaration}{{\n    return execute("{module}", PyInit_{module}());\n}}'
    functions = "".join(f'"{name}", ' for name in sorted(names - _SET_BY_FRAME))
    lines = [
        f"    static const char *const functions[] = {{{functions}NULL}};",
        f'    PyObject *module = pick("{module}", PyInit_{module}(), functions);',
    ]
    if "environ" in names:
        lines.append('    if (module != NULL && PyModule_AddObject(module, "environ", environment()) < 0)')
        lines.append("        return NULL;")
    return "\n".join([f"{declaration}{{", *lines, "    return module;", "}"])


def _array(name: str, data: bytes) -> str:
    lines = ("".join(f"{octet}," for octet in data[start : start + 24]) for start in range(0, len(data), 24))
    return f"static const unsigned char {name}[] = {{\n" + "\n".join(lines) + "\n};"
