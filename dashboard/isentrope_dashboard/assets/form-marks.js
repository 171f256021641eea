// Which fields of the control's form were edited, which somebody else set meanwhile, and the way back for each of them.
(function () {
  "use strict";
  const it = () => window.isentropeControl;  // form.js; looked up late, whichever file is loaded first
  const SIDES = { mu_low: ["lowOn", "low"], mu_high: ["highOn", "high"] };

  // A field's name without its method, as in `edits`.
  const nameOf = (mark) => (mark.method ? "method." + mark.field : mark.field);
  const before = (control, mark, fields, methods) => {
    const name = nameOf(mark);
    // A method that was not active had its parameters at their defaults.
    const own = !mark.method || control.method === mark.method ? control : { method: mark.method };
    const value = it().valueOf(own, name, fields);
    const known = name === "method" && (methods || []).find((choice) => choice.value === value);
    return known ? known.label : value;
  };
  const by = (change) => change.by || "somebody else";

  const markOf = (mark, form, base, edited, fields, methods) => {
    if (mark.method && mark.method !== form.method) return ["", ""];
    const name = nameOf(mark);
    const was = before(base.reference, mark, fields, methods);
    if (edited.includes(name)) {
      const theirs = (base.meanwhile || {})[name];
      // The method decides it, so that there is nothing to take back here.
      if (name in SIDES && !it().clips(form.method)) return ["edited fixed", "Off with this method; was " + was];
      if (theirs) return ["edited contested", "Edited; " + by(theirs) + " set " + was + " meanwhile, was " + theirs.was];
      return ["edited", "Edited; was " + was];
    }
    const taken = (base.taken || {})[name];
    return taken && edited.length ? ["theirs", "Set by " + by(taken) + " meanwhile; was " + taken.was] : ["", ""];
  };

  const reverted = (mark, form, reference, fields) => {
    const next = Object.assign({}, form);
    const [whole, part] = mark.field.split(".");
    if (mark.field in SIDES) {
      const [on, value] = SIDES[mark.field];
      next[on] = !it().missing(reference[mark.field]);
      if (next[on]) next[value] = reference[mark.field];
    } else if (mark.field === "hold") next.holdOn = Boolean(reference.hold);
    else if (whole === "hold") {
      const place = it().HOLD_NAMES.indexOf(part);
      next[it().HOLD_FIELDS[place]] = it().holdTexts(reference.hold)[place];
    } else if (!mark.method) next[mark.field] = reference[mark.field];
    const own = reference.method === mark.method ? reference : { method: mark.method };
    const texts = it().parameterTexts(own, fields);
    const is = (field) => field.method === mark.method && field.name === mark.field;
    return [next, fields.map((field, index) => (is(field) ? texts[index] : field.value))];
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentropeMarks: {
      mark(...given) {
        const form = it().named(given);
        const [base, values, methods, forms, ids, marks] = given.slice(it().NAMES.length);
        if (!base || it().missing(form.method)) return [marks.map(() => "marked-field"), marks.map(() => "")];
        const fields = it().parameterFields(forms, ids, values);
        const edited = it().edits(it().asControl(form, fields), base.reference, fields);
        const found = marks.map((mark) => markOf(mark, form, base, edited, fields, methods));
        return [found.map(([kind]) => ("marked-field " + kind).trim()), found.map(([, words]) => words)];
      },
      revert(clicks, base, forms, ids, values, ...current) {
        const mark = it().triggered();
        const form = it().named(current);
        const nothing = [...it().NAMES.map(it().noUpdate), ids.map(it().noUpdate)];
        if (!mark || !base || !clicks.some(Boolean)) return nothing;
        const fields = it().parameterFields(forms, ids, values);
        const [next, texts] = reverted(mark, form, base.reference, fields);
        return [
          ...it().NAMES.map((name) => (next[name] === form[name] ? it().noUpdate() : next[name])),
          texts.map((value, index) => (value === values[index] ? it().noUpdate() : value)),
        ];
      },
    },
  });
})();
