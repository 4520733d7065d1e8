"""Follow statements and declarations."""

from __future__ import annotations

from typing import Final

from pinwarden.contract.entitlements.javascript.effects import READING_SQL
from pinwarden.contract.entitlements.javascript.engine import forget_booleans
from pinwarden.contract.entitlements.javascript.expressions import JsExpressions
from pinwarden.contract.entitlements.javascript.syntax import JsNode, decode_text, read_string
from pinwarden.contract.entitlements.javascript.values import (
    ANY_DATA,
    DATA,
    EMPTY,
    AbstractValue,
    Frame,
    JsActivation,
    JsObject,
    JsText,
    Slot,
    find_truth,
    read_texts,
)

_MAX_ROUNDS: Final = 400
_FUNCTION_DECLARATIONS: Final = ("function_declaration", "generator_function_declaration")
_CLASS_DECLARATIONS: Final = ("class_declaration", "abstract_class_declaration")
_LEAVING: Final = frozenset(("return_statement", "throw_statement", "break_statement", "continue_statement"))


class JsStatements(JsExpressions):
    """The execution of statements."""

    def execute(self, node: JsNode, frame: Frame) -> bool:
        """Follow a statement. Returns whether it certainly leaves the surrounding block."""
        self.count_step()
        method = getattr(self, f"_execute_{node.kind}", None)
        if method is not None:
            return bool(method(node, frame))
        if node.kind in _LEAVING:
            for child in node.children:
                if child.kind != "statement_identifier":
                    value = self.evaluate(child, frame)
                    if node.kind == "return_statement":
                        self.write(self.current.returns, value)
            return True
        if node.kind in _FUNCTION_DECLARATIONS:
            return False  # declared at the beginning of the block
        self.evaluate(node, frame)
        return False

    def execute_block(self, statements: list[JsNode], frame: Frame) -> bool:
        """Declare the names of a block, then follow its statements until one certainly leaves it."""
        self.declare(statements, frame)
        for statement in statements:
            if self.execute(statement, frame):
                return True
            narrowed = _find_sql_guard(statement)
            if narrowed is not None:
                rest = self._make_block(statement, frame, "guarded")
                rest.names = {**frame.names, **rest.names, narrowed: Slot(frozenset((JsText(f"{READING_SQL[0]} …"),)))}
                frame = rest
        return False

    def declare(self, statements: list[JsNode], frame: Frame) -> None:
        """Create the variables of a block, and its functions."""
        for statement in statements:
            node = statement
            if node.kind == "export_statement":
                inner = node.get("declaration")
                if inner is None:
                    continue
                node = inner
            if node.kind in _FUNCTION_DECLARATIONS:
                function = self.make_function(node, frame)
                slot = frame.names.setdefault(decode_text(node.fields["name"].text), Slot())
                self.write(slot, frozenset((function,)))
            elif node.kind in _CLASS_DECLARATIONS or node.kind == "enum_declaration":
                if "name" in node.fields:
                    frame.names.setdefault(decode_text(node.fields["name"].text), Slot())
            elif node.kind == "lexical_declaration":
                for declarator in node.children:
                    if declarator.kind == "variable_declarator":
                        for name in _list_names(declarator.fields["name"]):
                            frame.names.setdefault(name, Slot())

    def declare_variables(self, body: JsNode, frame: Frame) -> None:
        """Create the ``var`` variables of a function."""
        pending = [body]
        while pending:
            node = pending.pop()
            if node.kind == "variable_declarator":
                pass
            elif node.kind in ("variable_declaration", "for_in_statement"):
                targets = [child.fields["name"] for child in node.children if child.kind == "variable_declarator"]
                kind = node.get("kind")
                if node.kind == "for_in_statement" and kind is not None and kind.text == "var":
                    targets.append(node.fields["left"])
                for target in targets:
                    for name in _list_names(target):
                        frame.names.setdefault(name, Slot())
            if node is not body and ("function" in node.kind or node.kind in ("method_definition", "class_body")):
                continue
            pending += node.children

    def run_body(self, activation: JsActivation) -> None:
        """Follow the code of an activation."""
        function, frame = activation.function, activation.frame
        if function is None:
            if activation.label == "<module>":
                self.run_module(activation)
            else:
                activation.follow()
            return
        node = function.node
        if "body" in node.fields and node.fields["body"].kind == "class_body":
            self._run_fields(activation)
            return
        for slot in activation.arguments:
            slot.readers[activation] = None
        self._bind_parameters(node, activation)
        body = node.get("body")
        if body is None:
            return
        if body.kind == "statement_block":
            self.declare_variables(body, frame)
            if not self.execute_block(body.children, frame):
                self.write(activation.returns, ANY_DATA)
        else:
            self.write(activation.returns, self.evaluate(body, frame))

    def run_module(self, activation: JsActivation) -> None:
        """Follow the code of a module."""
        raise NotImplementedError

    def _run_fields(self, activation: JsActivation) -> None:
        function, frame = activation.function, activation.frame
        home = None if function is None else function.home
        if home is None or frame.this is None:
            return
        for field in home.fields:
            name = field.get("property") or field.get("name")
            value = field.get("value")
            if name is None:
                continue
            given = self.evaluate(value, frame) if value is not None else EMPTY
            for key in self.read_key(name, frame):
                self.set_member(self.read(frame.this), key, given, field)

    def _bind_parameters(self, node: JsNode, activation: JsActivation) -> None:
        single = node.get("parameter")
        stated = node.get("parameters")
        parameters = [single] if single is not None else stated.children if stated is not None else []
        position = 0
        for parameter in parameters:
            pattern: JsNode | None = parameter
            default: JsNode | None = None
            if parameter.kind in ("required_parameter", "optional_parameter"):
                pattern, default = parameter.get("pattern"), parameter.get("value")
                if pattern is None or pattern.kind == "this":
                    continue
            if pattern is None or pattern.kind == "decorator":
                continue
            if pattern.kind == "rest_pattern":
                rest = self.make_object(activation.frame, id(pattern), "rest", "array")
                for slot in activation.arguments[position:]:
                    index = activation.arguments.index(slot) - position
                    self.set_object_member(rest, str(index), self.read(slot))
                self.bind_pattern(pattern.children[0], frozenset((rest,)), activation.frame, declare=True, keep=True)
                break
            value = self.read(activation.arguments[position]) if position < len(activation.arguments) else ANY_DATA
            if default is not None and DATA in value:
                value |= self.evaluate(default, activation.frame)
            self.bind_pattern(pattern, value, activation.frame, declare=True, keep=True)
            if "readonly" in parameter.text.split() and activation.frame.this is not None:
                for name in _list_names(pattern):
                    self.set_member(self.read(activation.frame.this), name, value, parameter)
            position += 1

    def bind_pattern(self, pattern: JsNode, value: AbstractValue, frame: Frame, *, declare: bool, keep: bool) -> None:
        """Assign a value to a name, a member or a destructuring pattern.

        With ``keep``, known booleans stay known, because nothing else assigns to the name.
        """
        kind = pattern.kind
        if kind in ("identifier", "shorthand_property_identifier_pattern", "shorthand_property_identifier"):
            name = decode_text(pattern.text)
            slot = None if declare else self.look_up(name, frame)
            if slot is None:
                slot = (frame if declare else frame.module.frame).names.setdefault(name, Slot())
            self.write(slot, value if keep else forget_booleans(value))
        elif kind in ("assignment_pattern", "object_assignment_pattern", "assignment_expression"):
            if DATA in value or not value:
                value |= self.evaluate(pattern.fields["right"], frame)
            self.bind_pattern(pattern.fields["left"], value, frame, declare=declare, keep=keep)
        elif kind in ("object_pattern", "object"):
            for child in pattern.children:
                self._bind_property(child, value, frame, declare=declare, keep=keep)
        elif kind in ("array_pattern", "array"):
            self._bind_elements(pattern, value, frame, declare=declare, keep=keep)
        elif kind == "member_expression":
            target = self.evaluate(pattern.fields["object"], frame)
            name = decode_text(pattern.fields["property"].text)
            self.assign_member(target, name, value, pattern)
        elif kind == "subscript_expression":
            target = self.evaluate(pattern.fields["object"], frame)
            names = read_texts(self.evaluate(pattern.fields["index"], frame))
            for key in names if names is not None else [None]:
                self.assign_member(target, key, value, pattern)
        elif kind in ("rest_pattern", "spread_element") and pattern.children:
            self.bind_pattern(pattern.children[0], value, frame, declare=declare, keep=keep)

    def assign_member(self, target: AbstractValue, name: str | None, value: AbstractValue, node: JsNode) -> None:
        """Assign to a member."""
        self.set_member(target, name, value, node)

    def _bind_property(self, child: JsNode, value: AbstractValue, frame: Frame, *, declare: bool, keep: bool) -> None:
        if child.kind in ("pair_pattern", "pair"):
            for name in self.read_key(child.fields["key"], frame):
                member = self.get_member(value, name, child.line)
                self.bind_pattern(child.fields["value"], member, frame, declare=declare, keep=keep)
        elif child.kind in ("rest_pattern", "spread_element"):
            self.bind_pattern(child.children[0], value, frame, declare=declare, keep=keep)
        else:
            inner = child.fields.get("left", child)
            member = self.get_member(value, decode_text(inner.text), child.line)
            self.bind_pattern(child, member, frame, declare=declare, keep=keep)

    def _bind_elements(self, pattern: JsNode, value: AbstractValue, frame: Frame, *, declare: bool, keep: bool) -> None:
        for index, child in enumerate(pattern.children):
            if child.kind in ("rest_pattern", "spread_element"):
                rest = self.make_array(frame, child, self.list_elements(value))
                self.bind_pattern(child.children[0], rest, frame, declare=declare, keep=keep)
            else:
                member = self.get_member(value, str(index), child.line)
                self.bind_pattern(child, member, frame, declare=declare, keep=keep)

    # Statements.

    def _execute_expression_statement(self, node: JsNode, frame: Frame) -> bool:
        for child in node.children:
            self.evaluate(child, frame)
        return False

    def _execute_lexical_declaration(self, node: JsNode, frame: Frame) -> bool:
        kind = node.get("kind")
        is_constant = kind is not None and kind.text == "const"
        for declarator in node.children:
            if declarator.kind != "variable_declarator":
                continue
            value = declarator.get("value")
            pattern = declarator.fields["name"]
            if value is None:
                given = ANY_DATA
            else:
                given = self.evaluate(value, frame)
                if pattern.kind == "identifier":
                    _name_functions(given, decode_text(pattern.text))
            declare = node.kind == "lexical_declaration"
            self.bind_pattern(pattern, given, frame, declare=declare, keep=is_constant)
        return False

    _execute_variable_declaration = _execute_lexical_declaration

    def _execute_enum_declaration(self, node: JsNode, frame: Frame) -> bool:
        item = self.make_object(frame, id(node), "enum")
        for member in node.fields["body"].children:
            value = member.get("value")
            name = member.fields.get("name", member)
            for key in self.read_key(name, frame):
                self.set_object_member(item, key, self.evaluate(value, frame) if value is not None else ANY_DATA)
        self.write(frame.names.setdefault(decode_text(node.fields["name"].text), Slot()), frozenset((item,)))
        return False

    def _make_block(self, node: JsNode, frame: Frame, detail: object = "") -> Frame:
        block = frame.blocks.get((id(node), detail))
        if block is None:
            block = frame.blocks[id(node), detail] = Frame(frame.module, frame)
        return block

    def _execute_statement_block(self, node: JsNode, frame: Frame) -> bool:
        return self.execute_block(node.children, self._make_block(node, frame))

    def _execute_if_statement(self, node: JsNode, frame: Frame) -> bool:
        truth = find_truth(self.evaluate(node.fields["condition"], frame))
        first = second = False
        if truth is not False:
            first = self.execute(node.fields["consequence"], frame)
        alternative = node.get("alternative")
        if truth is not True and alternative is not None:
            second = self.execute(alternative, frame)
        if truth is None:
            return first and second
        return first if truth else second

    def _execute_else_clause(self, node: JsNode, frame: Frame) -> bool:
        return any(self.execute(child, frame) for child in node.children)

    def _execute_switch_statement(self, node: JsNode, frame: Frame) -> bool:
        subject = read_texts(self.evaluate(node.fields["value"], frame))
        block = self._make_block(node, frame)
        cases = node.fields["body"].children
        bodies = [_list_case_body(case) for case in cases]
        self.declare([statement for body in bodies for statement in body], block)
        tests = [
            read_texts(self.evaluate(case.fields["value"], block)) if "value" in case.fields else [] for case in cases
        ]
        known = subject is not None and all(test is not None for test in tests)
        stated = {text for test in tests for text in test or ()}
        running = False
        for case, body, test in zip(cases, bodies, tests, strict=True):
            if case.kind == "switch_default":
                entered = not known or any(text not in stated for text in subject or ())
            else:
                entered = not known or bool(set(subject or ()) & set(test or ()))
            running = running or entered
            if running and self._follow_case(body, block):
                running = False
        return False

    def _follow_case(self, body: list[JsNode], frame: Frame) -> bool:
        """Follow the statements of one case. Returns whether the next case is certainly not reached from it."""
        return any(self.execute(statement, frame) for statement in body)

    def _execute_for_in_statement(self, node: JsNode, frame: Frame) -> bool:
        value = self.evaluate(node.fields["right"], frame)
        operator = node.get("operator")
        is_of = operator is not None and operator.text == "of"
        if is_of:
            self.call_implicitly(value, ("Symbol.iterator", "Symbol.asyncIterator", "next"), node)
            elements = self.list_elements(value)
        else:
            elements = frozenset(
                JsText(name) for item in value if isinstance(item, JsObject) for name in item.slots if name != "*"
            )
            for item in value:
                if isinstance(item, JsObject):
                    self.read(item.keys)
        declares = node.get("kind") is not None and node.fields["kind"].text != "var"
        separate = len(elements) <= _MAX_ROUNDS
        rounds = [frozenset((element,)) for element in elements] if separate else [elements]
        for element in rounds or [ANY_DATA]:
            block = self._make_block(node, frame, element if separate else "")
            self.bind_pattern(node.fields["left"], element, block, declare=declares, keep=declares)
            self.execute(node.fields["body"], block)
        return False

    def _execute_for_statement(self, node: JsNode, frame: Frame) -> bool:
        block = self._make_block(node, frame)
        start = node.get("initializer")
        if start is not None:
            self.declare([start], block)
            self.execute(start, block)
        for name in ("condition", "increment", "body"):
            part = node.get(name)
            if part is not None:
                self.execute(part, block)
        return False

    def _execute_while_statement(self, node: JsNode, frame: Frame) -> bool:
        self.evaluate(node.fields["condition"], frame)
        self.execute(node.fields["body"], frame)
        return False

    _execute_do_statement = _execute_while_statement

    def _execute_labeled_statement(self, node: JsNode, frame: Frame) -> bool:
        self.execute(node.fields["body"], frame)
        return False

    def _execute_try_statement(self, node: JsNode, frame: Frame) -> bool:
        leaves = self.execute(node.fields["body"], frame)
        handler = node.get("handler")
        if handler is not None:
            block = self._make_block(handler, frame)
            parameter = handler.get("parameter")
            if parameter is not None:
                self.bind_pattern(parameter, ANY_DATA, block, declare=True, keep=True)
            leaves = self.execute(handler.fields["body"], block) and leaves
        finalizer = node.get("finalizer")
        if finalizer is not None:
            leaves = self.execute(finalizer.fields["body"], frame) or leaves
        return leaves

    def _execute_with_statement(self, node: JsNode, frame: Frame) -> bool:
        self.add_unknown("names are looked up in an object (with)", node.line, "with")
        self.evaluate(node.fields["object"], frame)
        self.execute(node.fields["body"], frame)
        return False


def _find_sql_guard(statement: JsNode) -> str | None:
    """Return the variable of ``if (!variable.startsWith("SELECT")) throw …``; None for other statements."""
    if statement.kind != "if_statement" or "alternative" in statement.fields:
        return None
    condition, body = statement.fields["condition"], statement.fields["consequence"]
    leaves = body.kind in _LEAVING or any(
        child.kind in ("throw_statement", "return_statement") for child in body.children
    )
    if condition.kind != "unary_expression" or condition.fields["operator"].text != "!" or not leaves:
        return None
    call = condition.fields["argument"]
    callee = call.get("function")
    arguments = call.get("arguments")
    if callee is None or arguments is None or callee.kind != "member_expression" or not arguments.children:
        return None
    prefix = arguments.children[0]
    if callee.fields["property"].text != "startsWith" or prefix.kind != "string":
        return None
    if not read_string(prefix).strip().lower().startswith(READING_SQL):
        return None
    subject: JsNode | None = callee.fields["object"]
    while subject is not None and subject.kind == "call_expression":
        inner = subject.fields["function"]
        if inner.kind != "member_expression" or inner.fields["property"].text not in _SAME_STATEMENT:
            return None
        subject = inner.fields["object"]
    return decode_text(subject.text) if subject is not None and subject.kind == "identifier" else None


_SAME_STATEMENT: Final = frozenset(("trim", "trimStart", "toLowerCase", "toUpperCase", "toString"))


def _list_case_body(case: JsNode) -> list[JsNode]:
    value = case.get("value")
    return [child for child in case.children if child is not value]


def _name_functions(value: AbstractValue, name: str) -> None:
    for item in value:
        if getattr(item, "name", None) == "<anonymous>":
            item.name = name  # type: ignore[attr-defined]


def _list_names(pattern: JsNode) -> list[str]:
    """Return the names that a pattern declares."""
    if pattern.kind in ("identifier", "shorthand_property_identifier_pattern"):
        return [decode_text(pattern.text)]
    if pattern.kind in ("assignment_pattern", "object_assignment_pattern"):
        return _list_names(pattern.fields["left"])
    if pattern.kind == "pair_pattern":
        return _list_names(pattern.fields["value"])
    return [name for child in pattern.children for name in _list_names(child)]
