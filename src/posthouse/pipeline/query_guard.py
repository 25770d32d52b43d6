"""The guard of `pipeline query` and `serve`: SQL is answered only if it reads tables of the lake and nothing else.

Spark's SQL can write directories, run shell commands, call Java methods and read any file, in the middle of what looks
like a question. So the guard lets Spark parse the text and walks the parsed plan: every node must be one of a list
of query nodes, every relation a table of the lake or a CTE of the statement, every function a plain built-in one. A
node that the list does not have is refused, so a new statement of a later Spark is refused until it is added here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.session.spark import is_connect, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nodes of a parsed question, by the names of Spark's classes.
_QUERY_NODES = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Distinct", "Sample"),
        *("Union", "Except", "Intersect", "Join", "LateralJoin", "SubqueryAlias", "OneRowRelation", "LocalRelation"),
        *("UnresolvedWith", "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedHint", "WithWindowDefinition"),
        *("UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "RepartitionByExpression", "PipeOperator"),
        *("Generate", "Pivot", "Unpivot"),
    }
)
_SHOW_NODES = frozenset({"ShowTables", "CurrentNamespace$", "DescribeRelation", "DescribeColumn"})
#: Commands that hold a plan, and the method that returns it.
_WRAPPERS = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
_RELATIONS = frozenset({"UnresolvedRelation", "UnresolvedTableOrView"})
_SUBQUERIES = frozenset({"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"})
_TABLE_FUNCTIONS = frozenset({"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack"})
#: Built-in functions that call any Java method.
_FORBIDDEN_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})
#: Expressions whose function is known only when Spark runs them.
_FORBIDDEN_EXPRESSIONS = frozenset({"ExpressionWithUnresolvedIdentifier", "CallMethodViaReflection"})


def check_question(spark: SparkSession, sql: str, tables: frozenset[str]) -> None:
    """Raise query_refused unless `sql` only reads `tables`, and query_failed if Spark cannot parse it."""
    from pyspark.errors import PySparkException

    session: Any = spark._jsparkSession
    try:
        plan = session.sessionState().sqlParser().parsePlan(sql)
    except PySparkException as failure:
        raise error("query_failed", reason=spark_reason(failure)) from failure
    _Guard(tables | frozenset(_cte_names(plan))).check(plan)


def refuse_connect(spark: SparkSession) -> None:
    """Raise session_not_classic for a session of Spark Connect: the guard needs the parser in the JVM."""
    if is_connect(spark):
        raise error("session_not_classic")


class _Guard:
    """Checks the nodes and expressions of one parsed statement."""

    def __init__(self, relations: frozenset[str]) -> None:
        self._relations = relations

    def check(self, node: Any) -> None:
        name = _class_name(node)
        if name in _WRAPPERS:
            self.check(getattr(node, _WRAPPERS[name])())
            return
        if name in _RELATIONS:
            self._check_relation(node)
        elif name == "UnresolvedTableValuedFunction":
            self._check_table_function(_items(node.name()))
        elif name not in _QUERY_NODES and name not in _SHOW_NODES:
            raise _refused(f"it may not contain {name}")
        for expression in _expressions(node, name):
            self._check_expression(expression)
        inner = _items(node.innerChildren()) if name == "UnresolvedWith" else []  # of others: subqueries, checked above
        for child in (*inner, *_items(node.children())):
            self.check(child)

    def _check_relation(self, node: Any) -> None:
        parts = [str(part) for part in _items(node.multipartIdentifier())]
        if len(parts) != 1 or parts[0].lower() not in self._relations:
            raise _refused(f"{'.'.join(parts)} is not a table of the lake")

    def _check_table_function(self, parts: list[Any]) -> None:
        if len(parts) != 1 or str(parts[0]).lower() not in _TABLE_FUNCTIONS:
            raise _refused(f"the table function {'.'.join(map(str, parts))} is not allowed")

    def _check_expression(self, expression: Any) -> None:
        name = _class_name(expression)
        if name in _FORBIDDEN_EXPRESSIONS:
            raise _refused("the name of a function must be written out")
        if name.startswith("UnresolvedStar") and name != "UnresolvedStar":
            _refuse_replaced_columns(expression, name)
        if name == "UnresolvedFunction":
            self._check_function([str(part) for part in _items(expression.nameParts())])
        if name == "UnresolvedGenerator":
            self._check_table_function([expression.name().funcName()])
        if name in _SUBQUERIES:
            self.check(expression.plan())
        for child in _items(expression.children()):
            self._check_expression(child)

    def _check_function(self, parts: list[str]) -> None:
        if len(parts) != 1 or parts[0].lower() in _FORBIDDEN_FUNCTIONS:
            raise _refused(f"the function {'.'.join(parts)} is not allowed")


def _refuse_replaced_columns(star: Any, name: str) -> None:
    """Refuse a star that replaces columns, as in |> SET: Spark does not show the new values as its children."""
    if name != "UnresolvedStarExceptOrReplace" or not star.replacements().isEmpty():
        raise _refused("it may not replace columns of *; name the columns instead")


def refuse_outside_calls(plan: Any) -> None:
    """Refuse an analyzed plan that calls Java or runs a program: a second lock for what a parsed plan hides."""
    if "ScriptTransformation" in _class_name(plan):
        raise _refused("it may not run a program")
    for expression in _items(plan.expressions()):
        _refuse_java_call(expression)
    for child in _items(plan.children()):
        refuse_outside_calls(child)


def _refuse_java_call(expression: Any) -> None:
    name = _class_name(expression)
    if name in _FORBIDDEN_EXPRESSIONS:
        raise _refused("it may not call Java")
    if name in _SUBQUERIES:
        refuse_outside_calls(expression.plan())
    for child in _items(expression.children()):
        _refuse_java_call(child)


def _expressions(node: Any, name: str) -> list[Any]:
    found = _items(node.expressions())
    if name == "WithWindowDefinition":  # Spark does not count these as expressions of the node
        found += _items(node.windowDefinitions().values().toSeq())
    return found


def _cte_names(node: Any) -> Iterator[str]:
    """Yield the names of the CTEs anywhere in a parsed statement."""
    name = _class_name(node)
    if name in _WRAPPERS:
        yield from _cte_names(getattr(node, _WRAPPERS[name])())
        return
    if name == "UnresolvedWith":
        for relation in _items(node.innerChildren()):
            yield str(relation.alias()).lower()
    if name in _QUERY_NODES:
        for child in (*_items(node.innerChildren()), *_items(node.children())):
            yield from _cte_names(child)


def _class_name(item: Any) -> str:
    return str(item.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _refused(reason: str) -> PosthouseError:
    return error("query_refused", reason=reason)
