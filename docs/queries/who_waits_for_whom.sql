-- Who waits for whom, since when, and which of them is the cause?
-- Needs: Flight Recorder dumps of a hung job.
select groups.description as group_desc, seq, op, n_waiting, waiting, holder as waited_for, why, is_cause, in_cycle,
       round(waited_ns / 1e9, 3) as waited_s, file || ':' || line as place
from waits
left join groups using (group_id)
left join frames on frame_id = site_id
order by is_cause desc, since_ns, group_id, holder
