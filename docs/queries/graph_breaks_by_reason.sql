-- What breaks the graph, where, and how often?
-- Needs: TORCH_TRACE logs, or TORCH_LOGS=graph_breaks.
select reason, case when caller_file is not null and not is_user then caller_file || ':' || caller_line
                    else file || ':' || line end as place,
       any_value(code) as code, count(*) as n_breaks, count(distinct rank) as n_ranks, any_value(break_id) as break_id
from graph_breaks
group by reason, place
order by n_breaks desc, place
limit 20
