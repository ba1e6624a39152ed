-- What did torch.compile cost, by line of user code, and how much of that was recompiling?
-- Needs: TORCH_TRACE logs.
select file || ':' || line as place, function, count(distinct rank) as n_ranks,
       sum(n_compilations) as n_compilations, sum(n_recompiles) as n_recompiles,
       round(max(total_ns) / 1e9, 3) as worst_rank_s, arg_max(rank, total_ns) as worst_rank,
       round(sum(total_ns) / 1e9, 3) as all_ranks_s, round(sum(recompile_ns) / 1e9, 3) as recompiling_s
from compile_ledger
group by file, line, function
order by worst_rank_s desc, place
limit 20
