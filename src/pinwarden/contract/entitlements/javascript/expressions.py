"""Evaluate expressions to their possible values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pinwarden.contract.entitlements.javascript.builtins import Builtins
from pinwarden.contract.entitlements.javascript.engine import PROCESS_ENV, forget_booleans
from pinwarden.contract.entitlements.javascript.syntax import JsNode, decode_text, read_string
from pinwarden.contract.entitlements.javascript.values import (
    ALWAYS,
    ANY_DATA,
    DATA,
    EITHER,
    EMPTY,
    NEVER,
    AbstractValue,
    ClassValue,
    External,
    Frame,
    JsFunction,
    JsItem,
    JsObject,
    JsText,
    Slot,
    find_truth,
    read_texts,
)
from pinwarden.contract.entitlements.values import ENVIRONMENT

_FUNCTIONS: Final = frozenset(
    (
        "arrow_function",
        "function_expression",
        "generator_function",
        "function_declaration",
        "method_definition",
        "generator_function_declaration",
        "function",
    )
)
_MAX_TEXT: Final = 2_000
_LOCAL_NAMES: Final = frozenset(("undefined", "NaN", "Infinity", "__dirname", "__filename"))
_UNWRAPPING_HELPERS: Final = frozenset(
    ("__importStar", "__importDefault", "__toESM", "__toCommonJS", "_interopRequireDefault", "_interopRequireWildcard")
)


class JsExpressions(Builtins):
    """The evaluation of expressions."""

    def __init__(self) -> None:
        super().__init__()
        self._evaluators: dict[str, Callable[[JsNode, Frame], AbstractValue]] = {
            name.removeprefix("_evaluate_"): getattr(self, name) for name in dir(self) if name.startswith("_evaluate_")
        }
        for kind in _FUNCTIONS:
            self._evaluators[kind] = self._evaluate_function
        self._evaluators |= {
            "class_declaration": self._evaluate_class,
            "abstract_class_declaration": self._evaluate_class,
            "yield_expression": self._evaluate_await_expression,
            "augmented_assignment_expression": self._evaluate_assignment_expression,
        }

    def register(
        self, receiver: AbstractValue, name: str, arguments: Sequence[AbstractValue], node: JsNode
    ) -> AbstractValue | None:
        """Record a call that registers handlers. Returns the call's result; None if it registers nothing."""
        raise NotImplementedError

    def bind_pattern(self, pattern: JsNode, value: AbstractValue, frame: Frame, *, declare: bool, keep: bool) -> None:
        """Assign a value to a name, a member or a destructuring pattern."""
        raise NotImplementedError

    def evaluate(self, node: JsNode, frame: Frame) -> AbstractValue:
        """Return the possible values of an expression."""
        self.count_step()
        evaluator = self._evaluators.get(node.kind)
        if evaluator is not None:
            return evaluator(node, frame)
        for child in node.children:
            self.evaluate(child, frame)
        return ANY_DATA

    # Names and literals.

    def look_up(self, name: str, frame: Frame) -> Slot | None:
        """Return the variable with a name; None if it is global."""
        scope: Frame | None = frame
        while scope is not None:
            slot = scope.names.get(name)
            if slot is not None:
                return slot
            scope = scope.parent
        return None

    def _evaluate_identifier(self, node: JsNode, frame: Frame) -> AbstractValue:
        name = decode_text(node.text)
        slot = self.look_up(name, frame)
        if slot is not None:
            value = self.read(slot)
            if PROCESS_ENV in value:
                self.add_effect(ENVIRONMENT, node.line, "process.env")
            return value
        if name in _LOCAL_NAMES:
            return ANY_DATA
        if name == "arguments":
            return self._make_arguments()
        return frozenset((External("global", () if name in ("globalThis", "global") else (name,)),))

    _evaluate_shorthand_property_identifier = _evaluate_identifier

    def _make_arguments(self) -> AbstractValue:
        array = self.make_object(self.current.frame, 0, "arguments", "array")
        for index, slot in enumerate(self.current.arguments):
            self.set_object_member(array, str(index), self.read(slot))
        return frozenset((array,))

    def _evaluate_string(self, node: JsNode, frame: Frame) -> AbstractValue:  # noqa: ARG002  one signature for all
        return frozenset((JsText(read_string(node)),))

    def _evaluate_true(self, node: JsNode, frame: Frame) -> AbstractValue:  # noqa: ARG002  one signature for all
        return ALWAYS

    def _evaluate_false(self, node: JsNode, frame: Frame) -> AbstractValue:  # noqa: ARG002  one signature for all
        return NEVER

    def _evaluate_this(self, node: JsNode, frame: Frame) -> AbstractValue:  # noqa: ARG002  one signature for all
        scope: Frame | None = frame
        while scope is not None:
            if scope.this is not None:
                return self.read(scope.this)
            scope = scope.parent
        return ANY_DATA

    def _evaluate_template_string(self, node: JsNode, frame: Frame) -> AbstractValue:
        parts: list[str] | None = []
        for child in node.children:
            if child.kind == "template_substitution":
                value = self.evaluate(child.children[0], frame) if child.children else ANY_DATA
                self.call_implicitly(value, ("toString", "valueOf", "Symbol.toPrimitive"), node)
                texts = read_texts(value)
                parts = [*parts, texts[0]] if parts is not None and texts is not None and len(texts) == 1 else None
            elif parts is not None:
                parts.append(decode_text(child.text))
        text = None if parts is None else "".join(parts)
        if text is None or len(text) > _MAX_TEXT:
            return (
                frozenset((JsText(decode_text(node.children[0].text)[:40].lstrip() + " …"), DATA))
                if (node.children and node.children[0].kind == "string_fragment" and node.children[0].text.strip())
                else ANY_DATA
            )
        return frozenset((JsText(text),))

    def call_implicitly(self, value: AbstractValue, names: Sequence[str], node: JsNode) -> None:
        """Follow methods that the language itself calls, e.g. to convert an object to text."""
        for item in value:
            if isinstance(item, JsObject) and not item.label:
                for name in names:
                    own = name in item.slots or (item.cls is not None and self.find_method(item.cls, name))
                    if own:
                        self.call_method(frozenset((item,)), name, (ANY_DATA,), node)

    # Objects, arrays, functions and classes.

    def _evaluate_object(self, node: JsNode, frame: Frame) -> AbstractValue:
        item = self.make_object(frame, id(node))
        for child in node.children:
            if child.kind == "spread_element":
                self.copy_members(frozenset((item,)), self.evaluate(child.children[0], frame))
            elif child.kind == "shorthand_property_identifier":
                self.set_object_member(item, decode_text(child.text), self.evaluate(child, frame))
            elif child.kind == "pair":
                value = self.evaluate(child.fields["value"], frame)
                for name in self.read_key(child.fields["key"], frame):
                    self.set_object_member(item, name, value)
            elif child.kind == "method_definition":
                self._add_object_method(item, child, frame)
        return frozenset((item,))

    def _add_object_method(self, item: JsObject, node: JsNode, frame: Frame) -> None:
        function = self.make_function(node, frame)
        words = node.text.split()
        for name in self.read_key(node.fields["name"], frame):
            if "get" in words:
                item.getters[name or "*"] = function
            elif "set" in words:
                item.setters[name or "*"] = function
            else:
                self.set_object_member(item, name, frozenset((function,)))

    def read_key(self, node: JsNode, frame: Frame) -> list[str | None]:
        """Return the possible names of a property; None stands for a computed name."""
        if node.kind == "string":
            return [read_string(node)]
        if node.kind == "computed_property_name":
            inner = node.children[0]
            if inner.kind == "member_expression" and inner.fields["object"].text == "Symbol":
                return [f"Symbol.{inner.fields['property'].text}"]
            texts = read_texts(self.evaluate(inner, frame))
            return [None] if texts is None else list(texts)
        return [decode_text(node.text)]

    def _evaluate_array(self, node: JsNode, frame: Frame) -> AbstractValue:
        item = self.make_object(frame, id(node), "", "array")
        position: int | None = 0
        for child in node.children:
            if child.kind == "spread_element":
                self.set_object_member(item, "*", self.list_elements(self.evaluate(child.children[0], frame)))
                position = None
                continue
            value = self.evaluate(child, frame)
            self.set_object_member(item, "*" if position is None else str(position), value)
            position = None if position is None else position + 1
        return frozenset((item,))

    def make_function(self, node: JsNode, frame: Frame, name: str = "") -> JsFunction:
        """Return the function that a node creates in a frame; always the same one."""
        function = frame.functions.get(id(node))
        if function is None:
            stated = node.get("name")
            label = decode_text(stated.text) if stated is not None else name or "<anonymous>"
            function = frame.functions[id(node)] = JsFunction(node, frame, label or "<anonymous>")
        return function

    def _evaluate_function(self, node: JsNode, frame: Frame) -> AbstractValue:
        return frozenset((self.make_function(node, frame),))

    def _evaluate_class(self, node: JsNode, frame: Frame) -> AbstractValue:
        cls = frame.objects.get((id(node), "class"))
        stated = node.get("name")
        name = decode_text(stated.text) if stated is not None else "<class>"
        if not isinstance(cls, ClassValue):
            cls = frame.objects[id(node), "class"] = ClassValue(node, frame, name)
            for member in node.fields["body"].children:
                self._add_class_member(cls, member, frame)
        for child in node.children:
            if child.kind == "class_heritage":
                expression = child.children[0]
                if expression.kind == "extends_clause":
                    expression = expression.fields["value"]
                cls.base |= self.evaluate(expression, frame)
        if stated is not None:
            self.write(frame.names.setdefault(name, Slot()), frozenset((cls,)))
        for member in node.fields["body"].children:
            value = member.get("value")
            if member.kind in ("field_definition", "public_field_definition") and "static" in member.text.split():
                field = member.get("property") or member.get("name")
                if field is not None and value is not None:
                    for key in self.read_key(field, frame):
                        self.set_object_member(cls, key, self.evaluate(value, self._make_static_frame(cls, frame)))
            elif member.kind == "class_static_block":
                self.execute(member.fields["body"], self._make_static_frame(cls, frame))
            elif member.kind == "decorator":
                self.evaluate(member, frame)
        return frozenset((cls,))

    def _make_static_frame(self, cls: ClassValue, frame: Frame) -> Frame:
        static = frame.blocks.get((id(cls.node), "static"))
        if static is None:
            static = frame.blocks[id(cls.node), "static"] = Frame(frame.module, frame)
            static.this = Slot(frozenset((cls,)))
        return static

    def execute(self, node: JsNode, frame: Frame) -> bool:
        """Follow a statement. Returns whether it certainly leaves the surrounding block."""
        raise NotImplementedError

    def _add_class_member(self, cls: ClassValue, member: JsNode, frame: Frame) -> None:
        words = member.text.split()
        if member.kind in ("field_definition", "public_field_definition"):
            if "static" not in words:
                cls.fields.append(member)
            return
        if member.kind != "method_definition":
            return
        function = self.make_function(member, frame)
        function.home = cls
        function.name = f"{cls.name}.{function.name}"
        for name in self.read_key(member.fields["name"], frame):
            if name == "constructor":
                cls.constructor = function
            elif "static" in words:
                if "get" in words:
                    cls.getters[name or "*"] = function
                else:
                    self.set_object_member(cls, name, frozenset((function,)))
            elif "get" in words:
                cls.getters[f"#{name}"] = function
            elif "set" in words:
                cls.setters[f"#{name}"] = function
            else:
                cls.methods.setdefault(name or "*", {})[function] = None

    # Members and calls.

    def _evaluate_member_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        target = node.fields["object"]
        name = decode_text(node.fields["property"].text)
        if target.kind == "super":
            return self._get_super_member(name, frame)
        value = self.evaluate(target, frame)
        return self.get_member(value, name, node.line)

    def _get_super_member(self, name: str, frame: Frame) -> AbstractValue:
        home = self.find_home(frame)
        result: set[JsItem] = set()
        for base in home.base if home is not None else ():
            if isinstance(base, ClassValue):
                result |= self.find_method(base, name) or self.get_object_member(base, name, 0)
            elif isinstance(base, External):
                result |= self.get_member(frozenset((External(base.root, (*base.members, "()")),)), name, 0)
        return frozenset(result) or ANY_DATA

    def find_home(self, frame: Frame) -> ClassValue | None:
        """Return the class of the method that contains the code."""
        scope: Frame | None = frame
        while scope is not None:
            if scope.function is not None and scope.function.home is not None:
                return scope.function.home
            scope = scope.parent
        return None

    def _evaluate_subscript_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        value = self.evaluate(node.fields["object"], frame)
        index = node.fields["index"]
        if index.kind == "number":
            return self.get_member(value, index.text, node.line)
        return self.get_members(value, self.evaluate(index, frame), node.line)

    def evaluate_arguments(self, node: JsNode | None, frame: Frame) -> list[AbstractValue]:
        """Return the values of the arguments of a call."""
        arguments: list[AbstractValue] = []
        for child in node.children if node is not None else ():
            if child.kind == "spread_element":
                arguments += self._spread(self.evaluate(child.children[0], frame))
            else:
                arguments.append(self.evaluate(child, frame))
        return arguments

    def _evaluate_call_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        callee = node.fields["function"]
        stated = node.get("arguments")
        if stated is not None and stated.kind == "template_string":
            self.evaluate(stated, frame)
            return self.call_value(self.evaluate(callee, frame), EMPTY, (ANY_DATA,) * 3, node)
        if callee.kind == "import":
            return self.load_computed(self.evaluate_arguments(stated, frame)[0], node)
        if callee.kind == "super":
            return self._call_super(self.evaluate_arguments(stated, frame), node, frame)
        if callee.kind == "identifier":
            return self._call_name(callee, stated, node, frame)
        arguments = self.evaluate_arguments(stated, frame)
        if callee.kind == "sequence_expression":
            callee_value = self.evaluate(callee, frame)
            return self.call_value(callee_value, EMPTY, arguments, node)
        if callee.kind in ("member_expression", "subscript_expression"):
            return self._call_member(callee, arguments, node, frame)
        return self.call_value(self.evaluate(callee, frame), EMPTY, arguments, node)

    def _call_super(self, arguments: Sequence[AbstractValue], node: JsNode, frame: Frame) -> AbstractValue:
        home = self.find_home(frame)
        for item in self._evaluate_this(node, frame):
            if home is not None and isinstance(item, JsObject):
                self.initialize_base(home, item, arguments, node)
        return ANY_DATA

    def _call_name(self, callee: JsNode, stated: JsNode | None, node: JsNode, frame: Frame) -> AbstractValue:
        name = decode_text(callee.text)
        arguments = self.evaluate_arguments(stated, frame)
        if name == "await":  # the grammar reads ``await (0, f)(x)`` as a call of ``await``
            return arguments[-1] if arguments else ANY_DATA
        if name in _UNWRAPPING_HELPERS and arguments:
            return arguments[0]
        if name == "__awaiter" and len(arguments) > 3:
            given = self._spread(arguments[1]) if arguments[1] - ANY_DATA else []
            return self.call_value(arguments[3], arguments[0], given, node)
        if name == "__exportStar" and len(arguments) > 1:
            self.copy_members(arguments[1], arguments[0])
            return ANY_DATA
        if name == "__export" and len(arguments) > 1:
            self._export_getters(arguments[0], arguments[1], node)
            return ANY_DATA
        if name == "registerAppTool" and len(arguments) > 2:
            registered = self.register(ANY_DATA, "registerTool", arguments[1:], node)
            if registered is not None:
                return registered
        return self.call_value(self.evaluate(callee, frame), EMPTY, arguments, node)

    def _export_getters(self, target: AbstractValue, getters: AbstractValue, node: JsNode) -> None:
        for item in getters:
            for name, slot in list(item.slots.items()) if isinstance(item, JsObject) else ():
                value = self.call_value(self.read(slot), EMPTY, (), node)
                self.set_member(target, name, value, node)

    def _call_member(
        self, callee: JsNode, arguments: Sequence[AbstractValue], node: JsNode, frame: Frame
    ) -> AbstractValue:
        target = callee.fields["object"]
        if target.kind == "super":
            name = decode_text(callee.fields["property"].text)
            this = self._evaluate_this(node, frame)
            return self.call_value(self._get_super_member(name, frame), this, arguments, node)
        receiver = self.evaluate(target, frame)
        names: list[str] | None
        if callee.kind == "member_expression":
            names = [decode_text(callee.fields["property"].text)]
        else:
            index = callee.fields["index"]
            names = [index.text] if index.kind == "number" else read_texts(self.evaluate(index, frame))
        if names is None:
            return self.call_method(receiver, None, arguments, node)
        result: set[JsItem] = set()
        for name in names:
            registered = self.register(receiver, name, arguments, node)
            result |= registered if registered is not None else self.call_method(receiver, name, arguments, node)
        if names == ["stringify"]:
            for argument in arguments:
                self.call_implicitly(argument, ("toJSON",), node)
        return frozenset(result)

    def _evaluate_new_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        callee = self.evaluate(node.fields["constructor"], frame)
        return self.construct(callee, self.evaluate_arguments(node.get("arguments"), frame), node)

    # Operators.

    def _evaluate_await_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        value = self.evaluate(node.children[0], frame) if node.children else ANY_DATA
        self.call_implicitly(value, ("then",), node)
        if node.kind == "yield_expression":
            self.write(self.current.returns, value)
        return value

    def _evaluate_sequence_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        value = ANY_DATA
        for child in node.children:
            value = self.evaluate(child, frame)
        return value

    def _evaluate_ternary_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        truth = find_truth(self.evaluate(node.fields["condition"], frame))
        result = EMPTY
        if truth is not False:
            result |= self.evaluate(node.fields["consequence"], frame)
        if truth is not True:
            result |= self.evaluate(node.fields["alternative"], frame)
        return result

    def _evaluate_unary_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        value = self.evaluate(node.fields["argument"], frame)
        if node.fields["operator"].text != "!":
            return ANY_DATA
        truth = find_truth(value)
        return EITHER if truth is None else NEVER if truth else ALWAYS

    def _evaluate_binary_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        operator = node.fields["operator"].text
        left = self.evaluate(node.fields["left"], frame)
        if operator in ("&&", "||", "??"):
            return self._evaluate_logical(operator, left, node, frame)
        right = self.evaluate(node.fields["right"], frame)
        if operator in ("===", "==", "!==", "!="):
            return _compare(left, right, is_equal=operator in ("===", "=="))
        if operator == "+":
            self.call_implicitly(left | right, ("toString", "valueOf", "Symbol.toPrimitive"), node)
            first, second = read_texts(left), read_texts(right)
            if first is not None and second is not None and len(first) == len(second) == 1:
                return frozenset((JsText((first[0] + second[0])[:_MAX_TEXT]),))
            return ANY_DATA
        if operator == "in":
            return self._find_key(left, right)
        return EITHER if operator in ("instanceof", "<", ">", "<=", ">=") else ANY_DATA

    def _evaluate_logical(self, operator: str, left: AbstractValue, node: JsNode, frame: Frame) -> AbstractValue:
        truth = find_truth(left)
        if (operator == "&&" and truth is False) or (operator == "||" and truth is True):
            return left
        right = self.evaluate(node.fields["right"], frame)
        if (operator == "&&" and truth is True) or (operator == "||" and truth is False):
            return right
        return left | right

    def _find_key(self, left: AbstractValue, right: AbstractValue) -> AbstractValue:
        names = read_texts(left)
        objects = [item for item in right if isinstance(item, JsObject)]
        if names is None or len(names) != 1 or len(objects) != len(right) or not objects:
            return EITHER
        for item in objects:
            self.read(item.keys)
        if any("*" in item.slots for item in objects):
            return EITHER
        present = [names[0] in item.slots for item in objects]
        return ALWAYS if all(present) else EITHER if any(present) else NEVER

    def _evaluate_assignment_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        value = self.evaluate(node.fields["right"], frame)
        target = node.fields["left"]
        if node.kind == "augmented_assignment_expression":
            before = self.evaluate(target, frame)
            operator = node.get("operator")
            value = before | value if operator is not None and operator.text in ("||=", "??=", "&&=") else ANY_DATA
        self.bind_pattern(target, value, frame, declare=False, keep=False)
        return forget_booleans(value)

    def _evaluate_update_expression(self, node: JsNode, frame: Frame) -> AbstractValue:
        self.evaluate(node.fields["argument"], frame)
        return ANY_DATA


def _compare(left: AbstractValue, right: AbstractValue, *, is_equal: bool) -> AbstractValue:
    """Return whether constants are equal, if both sides are only constants."""
    first, second = read_texts(left), read_texts(right)
    if first is None or second is None:
        return EITHER
    if not set(first) & set(second):
        return NEVER if is_equal else ALWAYS
    if len(first) == len(second) == 1:
        return ALWAYS if is_equal else NEVER
    return EITHER
