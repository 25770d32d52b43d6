"""The guard of `pipeline query`, `serve` and `replay --where`: SQL only reads tables of the lake.

Spark's SQL can write directories, run shell commands, call Java methods and read any file, in the middle of what looks
like a query. So the guard lets Spark parse the text and walks the parsed plan: every node and every expression must be
on a list, every relation a table of the lake or a CTE in scope, every function a built-in one that computes its result
from its arguments. The lists name what is allowed, so a statement or a function of a later Spark is refused until it is
added here. They omit functions that call Java, read a file, URL or schema that an argument or an option names
(reflect, from_xml, from_avro, from_protobuf), parse XML (xpath), or reveal something about the host (input_file_name).
Spark would replace ${env:NAME} before the guard sees the text, so sessions of the pipeline turn this off.

If you add a node or an expression: make sure that Spark counts all its parts as expressions or children of it, or the
guard does not see them (windowDefinitions and replacements below), and add it to tests/pipeline/test_query_guard.py.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.session.spark import is_connect, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nodes of a parsed query, by the names of Spark's classes.
_QUERY_NODES = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Distinct", "Sample"),
        *("Union", "Except", "Intersect", "Join", "LateralJoin", "SubqueryAlias", "OneRowRelation", "LocalRelation"),
        *("UnresolvedWith", "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedHint", "WithWindowDefinition"),
        *("UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "RepartitionByExpression", "PipeOperator"),
        *("Generate", "Pivot", "Unpivot", "UnresolvedQualify", "LimitAll"),
    }
)
_SHOW_NODES = frozenset({"ShowTables", "CurrentNamespace$", "DescribeRelation", "DescribeColumn"})
#: Commands that hold a plan, and the method that returns it.
_WRAPPERS = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
_RELATIONS = frozenset({"UnresolvedRelation", "UnresolvedTableOrView"})
_SUBQUERIES = frozenset({"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"})
TABLE_FUNCTIONS = frozenset({"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack"})
#: Expressions that the parser makes itself; all other functions are UnresolvedFunction.
_EXPRESSION_NAMES = """
    Alias MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedRegex
    UnresolvedExtractValue SemiStructuredExtract UnresolvedOrdinal UnresolvedPipeAggregateOrdinal PipeExpression
    UnresolvedFunction UnresolvedGenerator NamedArgumentExpression LambdaFunction UnresolvedNamedLambdaVariable
    ScalarSubquery ListQuery Exists LateralSubquery InSubquery In Literal NamePlaceholder$ CreateNamedStruct
    And Or Not EqualTo EqualNullSafe LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual IsNull IsNotNull
    Like ILike LikeAll LikeAny NotLikeAll NotLikeAny RLike CaseWhen Coalesce Cast Collate
    UnresolvedCollation Add Subtract Multiply Divide IntegralDivide Remainder UnaryMinus UnaryPositive BitwiseAnd
    BitwiseOr BitwiseXor BitwiseNot ShiftLeft ShiftRight ShiftRightUnsigned Concat Lower Hex Overlay StringLocate
    StringTrim StringTrimLeft StringTrimRight Substring TimestampAdd TimestampDiff CurrentDate CurrentTime
    CurrentTimestamp AggregateExpression AnyValue First Last Cube Rollup GroupingSets SortOrder
    UnresolvedWindowExpression WindowExpression WindowSpecDefinition WindowSpecReference SpecifiedWindowFrame
    UnspecifiedFrame$ CurrentRow$ UnboundedPreceding$ UnboundedFollowing$ AttributeReference
"""
_EXPRESSIONS = frozenset(_EXPRESSION_NAMES.split())
#: Functions that compute their result from their arguments: conditions, numbers, time, miscellaneous, arrays and maps,
#: aggregates, sketches, text, conversions, generators, windows, JSON and variants, geometry and vectors.
_FUNCTION_NAMES = """
    and between case coalesce equal_null if ifnull ilike in isnan isnotnull isnull like nanvl not nullif
    nullifzero nvl nvl2 or regexp regexp_like rlike when zeroifnull
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot
    csc degrees div e exp expm1 factorial floor getbit greatest hex hypot least ln log log10 log1p log2 mod
    negative pi pmod positive pow power radians rand randn random rint round sec shiftleft shiftright
    shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract
    unhex uniform width_bucket
    add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add
    date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day
    dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtime
    localtimestamp make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_ym_interval minute month monthname months_between next_day now quarter second
    session_window time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros
    time_to_millis time_to_seconds time_trunc timestamp_micros timestamp_millis timestamp_nanos
    timestamp_seconds to_date to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
    try_to_date try_to_time try_to_timestamp unix_date unix_micros unix_millis unix_nanos unix_seconds
    unix_timestamp weekday weekofyear window window_time year
    aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count hmac
    monotonically_increasing_id raise_error spark_partition_id try_aes_decrypt typeof uuid version
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert
    array_intersect array_join array_max array_min array_position array_prepend array_remove array_repeat
    array_size array_sort array_union arrays_overlap arrays_zip cardinality concat element_at exists filter
    flatten forall get map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries
    map_keys map_values map_zip_with named_struct reduce reverse sequence shuffle size slice sort_array
    str_to_map struct transform transform_keys transform_values try_element_at zip_with
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg
    bool_and bool_or collect_list collect_set collect_union corr count count_if count_min_sketch covar_pop
    covar_samp every first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis last last_value listagg max max_by mean median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double
    tuple_union_agg_integer var_pop var_samp variance
    approx_top_k_estimate hll_sketch_estimate hll_union kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
    kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float theta_difference
    theta_intersection theta_sketch_estimate theta_union tuple_difference_double tuple_difference_integer
    tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_double
    tuple_union_integer tuple_union_theta_double tuple_union_theta_integer
    ascii base64 bit_length btrim char char_length character_length chr collate collation concat_ws contains
    crc32 decode elt encode endswith find_in_set format_number format_string from_base32 hash initcap instr
    is_valid_utf8 jaro_winkler_similarity lcase left len length levenshtein locate lower lpad ltrim luhn_check
    make_valid_utf8 mask md5 octet_length overlay parse_url position printf quote randstr regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace right rpad rtrim
    sentences sha sha1 sha2 soundex space split split_part startswith substr substring substring_index to_base32
    to_binary to_char to_number to_varchar translate trim try_parse_url try_to_binary try_to_number
    try_url_decode try_validate_utf8 ucase unbase64 upper url_decode url_encode validate_utf8 xxhash64
    bigint binary boolean cast date decimal double float int smallint string time timestamp tinyint
    explode explode_outer inline inline_outer posexplode posexplode_outer stack
    counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
    from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys
    json_tuple parse_json schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg to_csv to_json
    to_variant_object try_parse_json try_variant_array_append try_variant_get try_variant_insert try_variant_set
    variant_array_append variant_delete variant_explode variant_explode_outer variant_get variant_insert
    variant_set variant_strip_nulls
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid vector_avg vector_cosine_similarity
    vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum
"""
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
#: Expressions whose function is known only when Spark runs them.
_FORBIDDEN_EXPRESSIONS = frozenset({"ExpressionWithUnresolvedIdentifier", "CallMethodViaReflection"})


def check_question(spark: SparkSession, sql: str, tables: frozenset[str]) -> None:
    """Raise query_refused unless `sql` only reads `tables`, and query_failed if Spark cannot parse it."""
    _check(_parsed(spark, "parsePlan", sql), tables)


def check_condition(spark: SparkSession, sql: str) -> None:
    """Raise query_refused unless the condition `sql` only computes, without a subquery; query_failed if invalid."""
    refuse_connect(spark)
    _check_expression(_parsed(spark, "parseExpression", sql), None)


def _parsed(spark: SparkSession, method: str, sql: str) -> Any:
    from pyspark.errors import PySparkException

    session: Any = spark._jsparkSession
    try:
        return getattr(session.sessionState().sqlParser(), method)(sql)
    except PySparkException as failure:
        raise error("query_failed", reason=spark_reason(failure)) from failure


def refuse_connect(spark: SparkSession) -> None:
    """Raise session_not_classic for a session of Spark Connect: the guard needs the parser in the JVM."""
    if is_connect(spark):
        raise error("session_not_classic")


def _check(node: Any, scope: frozenset[str]) -> None:
    """Check a node of a parsed plan; `scope` holds the relations that it may name."""
    name = _class_name(node)
    if name in _WRAPPERS:
        _check(getattr(node, _WRAPPERS[name])(), scope)
        return
    if name in _RELATIONS:
        _check_relation(node, name, scope)
    elif name == "UnresolvedTableValuedFunction":
        _check_table_function(_items(node.name()))
    elif name not in _QUERY_NODES and name not in _SHOW_NODES:
        raise _refused(f"it may not contain {name}")
    for expression in _expressions(node, name):
        _check_expression(expression, scope)
    if name == "UnresolvedWith":  # inner children of other nodes are subqueries of their expressions
        scope = _check_ctes(node, scope)
    for child in _items(node.children()):
        _check(child, scope)


def _check_ctes(node: Any, scope: frozenset[str]) -> frozenset[str]:
    """Check the CTEs of a WITH and return the scope of its query: a CTE sees those before it, not those after it."""
    for relation in _items(node.innerChildren()):
        named = scope | {str(relation.alias()).lower()}
        _check(relation, named if node.allowRecursion() else scope)
        scope = named
    return scope


def _check_relation(node: Any, name: str, scope: frozenset[str]) -> None:
    parts = [str(part) for part in _items(node.multipartIdentifier())]
    if len(parts) != 1 or parts[0].lower() not in scope:
        close = difflib.get_close_matches(parts[0].lower(), sorted(scope), 1) if len(parts) == 1 else []
        meant = f"; did you mean {close[0]}?" if close else ""
        raise _refused(f"{'.'.join(parts)} is not a table of the lake{meant}")
    if name == "UnresolvedRelation" and not node.options().isEmpty():
        raise _refused(f"the table {parts[0]} takes no options")


def _check_table_function(parts: list[Any]) -> None:
    if len(parts) != 1 or str(parts[0]).lower() not in TABLE_FUNCTIONS:
        raise _refused(f"the table function {'.'.join(map(str, parts))} is not allowed")


def _check_expression(expression: Any, scope: frozenset[str] | None) -> None:
    """Check an expression of a parsed plan; `scope` holds the relations for subqueries; None: there may be none."""
    name = _class_name(expression)
    if name in _FORBIDDEN_EXPRESSIONS:
        raise _refused("the name of a function must be literal, not computed")
    if name not in _EXPRESSIONS:
        raise _refused(f"it may not contain the expression {name}")
    if name == "UnresolvedStarExceptOrReplace":
        _refuse_replaced_columns(expression)
    if name == "UnresolvedFunction":
        _check_function([str(part) for part in _items(expression.nameParts())])
    if name == "UnresolvedGenerator":
        _check_table_function([expression.name().funcName()])
    if name in _SUBQUERIES:
        if scope is None:
            raise _refused("a condition may not contain a subquery")
        _check(expression.plan(), scope)
    for child in _items(expression.children()):
        _check_expression(child, scope)


def _check_function(parts: list[str]) -> None:
    if len(parts) != 1 or parts[0].lower() not in FUNCTIONS:
        raise _refused(f"the function {'.'.join(parts)} is not allowed")


def _refuse_replaced_columns(star: Any) -> None:
    """Refuse a star that replaces columns, as in |> SET: Spark does not show the new values as its children."""
    if not star.replacements().isEmpty():
        raise _refused("it may not replace columns of *; name the columns instead")


def refuse_outside_calls(plan: Any) -> None:
    """Refuse an analyzed plan that calls Java or runs a program: a second check for calls that a parsed plan hides."""
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


def _class_name(item: Any) -> str:
    """Return the name of an item's class; for an anonymous class, as of IS UNKNOWN, that of the class it extends."""
    kind = item.getClass()
    return str(kind.getSimpleName() or kind.getSuperclass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _refused(reason: str) -> PosthouseError:
    return error("query_refused", reason=reason)
