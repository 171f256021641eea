// The form that pushes a control: its values, its errors, and how it follows the active control.
(function () {
  "use strict";
  const noUpdate = () => window.dash_clientside.no_update;
  const triggered = () => window.dash_clientside.callback_context.triggered_id;
  const missing = (value) => value === null || value === undefined;
  const DEFAULT_THRESHOLD = 1;
  // Facts of the server's, as data of the page (app.py).
  const meta = (name) => document.querySelector("meta[name=" + name + "]").content.split(" ");
  const THRESHOLD_METHODS = meta("threshold-methods");
  const HOLD_BOUNDS = meta("hold-bounds").map(Number); // the defaults of µ min and µ max
  const clips = (method) => THRESHOLD_METHODS.includes(method);
  const HOLDING_METHODS = ["none", ...THRESHOLD_METHODS];
  const number = (value) =>
    missing(value) || String(value).trim() === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  const text = (value) => (missing(value) ? "" : String(value));
  const empty = (value) => text(value).trim() === "";
  const sameText = (a, b) =>
    number(a) === null || number(b) === null ? text(a).trim() === text(b).trim() : number(a) === number(b);
  const sameNumber = (a, b) => (missing(a) || missing(b) ? missing(a) && missing(b) : Math.abs(a - b) < 1e-9);

  // ---- a method's parameters -----------------------------------------------------------------------------------
  // The fields of all methods: their methods and names (ids), what each takes (forms), its value (values).
  const parameterFields = (forms, ids, values) =>
    ids.map((id, index) => ({ method: id.method, name: id.name, form: forms[id.method][id.name], value: values[index] }));
  const off = (field) => empty(field.value) && field.form.default === null;
  const entered = (field) => (field.form.kind === "choice" ? text(field.value).trim() : number(field.value));
  const parameterError = (field) => {
    const { kind, minimum, maximum, minimumExcluded, range } = field.form;
    if (kind === "choice" || off(field)) return "";
    const value = entered(field);
    const fits = value !== null && (kind !== "whole" || Number.isInteger(value))
      && (minimum === null || value > minimum || (value === minimum && !minimumExcluded))
      && (maximum === null || value <= maximum);
    return fits ? "" : "Enter " + range + ".";
  };
  // The value of every parameter that has a field; those that a control does not name have their defaults.
  const allParameters = (control, fields) => {
    const given = control.parameters || {};
    const own = fields.filter((field) => field.method === control.method);
    return Object.fromEntries(own.map(({ name, form }) => [name, name in given ? given[name] : form.default]));
  };
  const parameterTexts = (control, fields) => {
    const own = allParameters(control, fields);
    return fields.map((field) => text(field.method === control.method ? own[field.name] : field.form.default));
  };

  // ---- an entropy to hold --------------------------------------------------------------------------------------
  // The names of a hold's fields, and those of the form for them, in one order.
  const HOLD_NUMBERS = ["max_change_per_step", "mu_min", "mu_max"];
  const HOLD_NAMES = ["target", ...HOLD_NUMBERS, "side", "reward_guard"];
  const HOLD_FIELDS = ["target", "change", "muMin", "muMax", "side", "guard"];
  const holdFrom = (form) => {
    if (!form.holdOn) return null;
    const value = (name, index) => (HOLD_NUMBERS.includes(name) ? number(form[HOLD_FIELDS[index]]) : form[HOLD_FIELDS[index]]);
    return Object.fromEntries(HOLD_NAMES.map((name, index) => [name, value(name, index)]));
  };
  const holdTexts = (hold) => {
    const given = hold || {};
    return [text(given.target), ...HOLD_NUMBERS.map((name) => text(given[name])), given.side || "both", given.reward_guard !== false];
  };
  const holdParts = (hold, reference) => {
    const [own, others] = [hold, reference].map(holdTexts);
    return HOLD_NAMES.filter((_, index) => !sameText(own[index], others[index])).map((name) => "hold." + name);
  };
  const holdEdits = (hold, reference) => {
    if (!hold || !reference) return Boolean(hold) !== Boolean(reference) ? ["hold"] : [];
    return holdParts(hold, reference);
  };
  const targetError = (target) => {
    if (empty(target)) return "Enter the entropy to hold: nats, or a share of the early level such as 75%.";
    if (text(target).includes(":")) return "";  // a curve is checked where it is read
    const level = text(target).trim().replace(/\s*%$/, "");
    return number(level) > 0 ? "" : "Enter a number above 0, or a share of the early level such as 75%.";
  };
  const boundError = (value, least, excluded) => {
    if (empty(value)) return "";
    const bound = number(value);
    if (bound === null || bound < least || (excluded && bound === least)) return "Enter a number " + (excluded ? "above " : "of at least ") + least + ".";
    return "";
  };
  // One message for each of the four fields; nothing is wrong while nothing is held.
  const holdErrors = ({ holdOn, target, change, muMin, muMax }) => {
    if (!holdOn) return ["", "", "", ""];
    const errors = [
      targetError(target),
      boundError(change, 0, true), boundError(muMin, 0, false), boundError(muMax, 0, false),
    ];
    const [lowest, highest] = [number(muMin) === null ? HOLD_BOUNDS[0] : number(muMin), number(muMax) === null ? HOLD_BOUNDS[1] : number(muMax)];
    if (!errors[2] && !errors[3] && lowest > highest) errors[3] = "µ max must not lie below µ min.";
    return errors;
  };

  // ---- the whole form ------------------------------------------------------------------------------------------
  const NAMES = ["method", "scope", "lowOn", "low", "highOn", "high", "holdOn", "target", "change", "muMin", "muMax", "side", "guard"];
  const named = (values) => Object.fromEntries(NAMES.map((name, index) => [name, values[index]]));
  const asControl = (form, fields = []) => {
    const own = fields.filter((field) => field.method === form.method);
    return {
      method: form.method, scope: form.scope,
      mu_low: clips(form.method) && form.lowOn ? number(form.low) : null, mu_high: clips(form.method) && form.highOn ? number(form.high) : null,
      parameters: Object.fromEntries(own.map((field) => [field.name, entered(field)])), hold: holdFrom(form),
    };
  };
  // A side that does not clip keeps its last number, so that switching it on again is one click.
  const kept = (value) => (number(value) === null ? DEFAULT_THRESHOLD : noUpdate());
  const thresholdsOf = (control, form) => [
    control.method, control.scope,
    !missing(control.mu_low), missing(control.mu_low) ? kept(form.low) : control.mu_low,
    !missing(control.mu_high), missing(control.mu_high) ? kept(form.high) : control.mu_high,
  ];
  // So does an entropy that is not held.
  const holdOf = (hold) =>
    hold ? [true, ...holdTexts(hold)] : [false, ...HOLD_FIELDS.map(noUpdate)];
  const parameterEdits = (control, reference, fields) => {
    const known = allParameters(control.method === reference.method ? reference : { method: control.method }, fields);
    return Object.keys(control.parameters).filter((name) => control.parameters[name] !== known[name]).map((name) => "method." + name);
  };
  // What a push would change, as names: `mu_low`, `hold`, `hold.mu_min`, `method.ratio`.
  const edits = (control, b, fields) => [
    ...["method", "scope"].filter((name) => control[name] !== b[name]),
    ...["mu_low", "mu_high"].filter((name) => !sameNumber(control[name], b[name])),
    ...parameterEdits(control, b, fields), ...holdEdits(control.hold, b.hold),
  ];

  // ---- a control that changes while the form is edited -----------------------------------------------------------
  const SIDES = [["lowOn", "low", "mu_low"], ["highOn", "high", "mu_high"]];
  // The method stays as well where the new one has no field for what was edited: that edit would be lost unasked.
  const mergedMethod = (form, base, theirs, sideEdits, typedIn) => {
    const lost = (!clips(theirs.method) && sideEdits.some(Boolean))
      || (theirs.method !== form.method && typedIn.some(Boolean));
    return form.method !== base.method || lost ? form.method : theirs.method;
  };
  const mergeHold = (form, base, theirs, next) => {
    const [before, now] = [base, theirs].map(holdTexts);
    const edits = HOLD_FIELDS.map((name, index) => Boolean(form.holdOn) && !sameText(form[name], before[index]));
    const switched = Boolean(form.holdOn) !== Boolean(base);
    if (!switched && (theirs || !edits.some(Boolean))) next.holdOn = Boolean(theirs);
    if (!theirs || !holdEdits(theirs, base).length) return;
    HOLD_FIELDS.forEach((name, index) => {
      if (!form.holdOn || (!edits[index] && !sameText(before[index], now[index]))) next[name] = now[index];
    });
  };
  // The fields once the control goes from `base` to `theirs`: what was edited stays, the rest goes along. The value
  // of a field that the chosen method does not use is no edit.
  const merge = (form, fields, base, theirs) => {
    const [before, now] = [base, theirs].map((control) => parameterTexts(control, fields));
    const sideEdits = SIDES.map(([on, value, mu]) =>
      clips(form.method) && (Boolean(form[on]) === missing(base[mu]) || (form[on] && !sameNumber(number(form[value]), base[mu]))));
    const typedIn = fields.map((field, index) => field.method === form.method && !sameText(field.value, before[index]));
    const next = Object.assign({}, form, { method: mergedMethod(form, base, theirs, sideEdits, typedIn) });
    const methodMoved = base.method !== theirs.method;
    if (form.scope === base.scope) next.scope = theirs.scope;
    SIDES.forEach(([on, value, mu], index) => {
      const moved = !sameNumber(base[mu], theirs[mu]) || (methodMoved && !clips(form.method));
      if (!moved || sideEdits[index] || (clips(next.method) && !clips(theirs.method))) return;
      next[on] = !missing(theirs[mu]);
      if (next[on]) next[value] = theirs[mu];
    });
    mergeHold(form, base.hold, theirs.hold, next);
    const follows = (field, index) => {
      if (typedIn[index] || (field.method === next.method && theirs.method !== next.method)) return false;
      return !sameText(before[index], now[index]) || (methodMoved && field.method !== form.method);
    };
    const value = (field, index) => (follows(field, index) ? now[index] : field.value);
    return { form: next, fields: fields.map((field, index) => Object.assign({}, field, { value: value(field, index) })) };
  };
  // Where a control is not like `other`, as names: `mu_low`, `hold`, `hold.mu_min`, `method.ratio`.
  const differences = (control, other, fields) => {
    const names = ["method", "scope"].filter((name) => control[name] !== other[name]);
    if (clips(other.method)) names.push(...["mu_low", "mu_high"].filter((name) => !sameNumber(control[name], other[name])));
    if (control.method === other.method) {
      const [own, others] = [control, other].map((one) => allParameters(one, fields));
      names.push(...Object.keys(others).filter((name) => own[name] !== others[name]).map((name) => "method." + name));
    }
    if (!control.hold || !other.hold) return !control.hold === !other.hold ? names : [...names, "hold"];
    return [...names, ...holdParts(control.hold, other.hold)];
  };
  const valueOf = (control, name, fields) => {
    if (name === "hold") return control.hold ? text(control.hold.target) : "off";
    const [whole, part] = name.split(".");
    if (whole === "hold") return text((control.hold || {})[part]) || "default";
    return text(part ? allParameters(control, fields)[part] : control[name]) || "off";
  };
  // Names of what somebody else changed and the form does not follow: of a whole and its part the part.
  const overridden = (wanted, theirs, moved, fields) => {
    const pairs = differences(wanted, theirs, fields).flatMap((name) => moved.map((other) => [name, other].sort()));
    return [...new Set(pairs.filter(([whole, part]) => whole === part || part.startsWith(whole + ".")).map(([, part]) => part))];
  };
  // Who changed what the form does not follow, and from what; kept until the form follows or the change is taken back.
  const changedMeanwhile = (wanted, base, control, fields) => {
    const [before, theirs] = [base.reference, control.reference];
    const by = control.version === base.version + 1 ? control.author : "";  // of several versions the author is unknown
    // Of a method or a hold that is no more, no part was changed to anything.
    const gone = (name) =>
      (before.method !== theirs.method && name.startsWith("method.")) || (!theirs.hold && name.startsWith("hold."));
    const moved = Object.fromEntries(Object.entries(base.meanwhile).filter(([name]) => !gone(name)));
    for (const name of differences(before, theirs, fields)) {
      moved[name] = { by: by, was: moved[name] ? moved[name].was : valueOf(before, name, fields) };
    }
    const lasting = Object.keys(moved).filter((name) => valueOf(theirs, name, fields) !== moved[name].was);
    const kept = overridden(wanted, theirs, lasting, fields);
    return Object.fromEntries(Object.entries(moved).filter(([name]) => lasting.includes(name)
      && kept.some((other) => other === name || other.startsWith(name + "."))));
  };
  // Who set what the form took over while it was edited, and from what; nothing once the edits are pushed or taken back.
  const takenOver = (before, after, base, control, fields) => {
    if (!edits(before, base.reference, fields).length) return {};
    const by = control.version === base.version + 1 ? control.author : "";
    const theirs = Object.assign({}, control.reference, { parameters: allParameters(control.reference, fields) });
    const taken = Object.assign({}, base.taken);
    const open = edits(after, theirs, fields);
    for (const name of edits(theirs, base.reference, fields)) {
      const followed = valueOf(before, name, fields) !== valueOf(theirs, name, fields) && !open.includes(name);
      if (followed) taken[name] = { by: by, was: taken[name] ? taken[name].was : valueOf(base.reference, name, fields) };
    }
    return taken;
  };
  const LABELS = {
    mu_low: "µ₋", mu_high: "µ₊", "hold.target": "target entropy", "hold.max_change_per_step": "largest change per step",
    "hold.mu_min": "µ min", "hold.mu_max": "µ max", "hold.reward_guard": "reward guard",
  };
  const meanwhileText = (wanted, base, fields, methods) => {
    const moved = Object.keys(base.meanwhile);
    const notes = overridden(wanted, base.reference, moved, fields).map((name) => {
      const value = valueOf(base.reference, name, fields);
      const method = name === "method" && (methods || []).find((choice) => choice.value === value);
      const { by } = base.meanwhile[name] || base.meanwhile[name.split(".")[0]];
      const label = LABELS[name] || name.split(".").pop().replaceAll("_", " ");
      return label + " (changed meanwhile" + (by ? " by " + by : "") + " to " + (method ? method.label : value) + ")";
    });
    return notes.length ? "Kept as you entered it: " + notes.join(", ") + "." : "";
  };

  // What is wrong with a threshold's field; nothing is, while its side does not clip.
  const thresholdError = (method, on, value) => {
    if (!clips(method) || !on) return "";
    if (number(value) === null) return "Enter a number, or switch the threshold off.";
    return number(value) < 0 ? "A threshold counts standard deviations and can't be negative." : "";
  };
  const thresholdErrors = (form) =>
    [thresholdError(form.method, form.lowOn, form.low), thresholdError(form.method, form.highOn, form.high)];
  const unable = (form, methods) => {
    if (!(methods || []).some((choice) => choice.value === form.method)) return "This run's probe can't carry out this method.";
    if (form.holdOn && !HOLDING_METHODS.includes(form.method)) {
      return "Holding an entropy moves the thresholds of Clip_B or Clip_V: choose one of them or None, or switch the hold off.";
    }
    const unset = clips(form.method) && !form.lowOn && !form.highOn && !form.holdOn;
    return unset ? "Switch on a threshold: without one, nothing is clipped." : "";
  };

  // What the form would do, asked once its fields have been still for a moment.
  const WHAT_IF_STILL_MILLISECONDS = 120;
  let whatIfTimer = 0;

  // For the marks of the fields (form-marks.js).
  window.isentropeControl = {
    NAMES, HOLD_FIELDS, HOLD_NAMES, asControl, clips, edits, holdTexts, missing, named, noUpdate, parameterFields, parameterTexts,
    text, triggered, valueOf,
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentropeForm: {
      joinSliderAndNumber(slider, value, maximum) {
        const typed = number(value);
        if (String(triggered()).endsWith("-slider")) {
          const shown = typed === null ? null : Math.min(typed, maximum);
          return [noUpdate(), sameNumber(shown, slider) ? noUpdate() : slider];
        }
        // The slider would answer with 0, and what was entered would be gone before its error is read.
        if (typed === null || typed < 0) return [noUpdate(), noUpdate()];
        const shown = Math.min(typed, maximum);
        return [sameNumber(shown, slider) ? noUpdate() : shown, noUpdate()];
      },
      followControl(control, _reset, base, forms, ids, values, ...current) {
        if (!control) return [...Array(NAMES.length).fill(noUpdate()), ids.map(noUpdate), noUpdate()];
        const theirs = control.reference;
        const fields = parameterFields(forms, ids, values);
        const form = named(current);
        if (!base || triggered() === "control-reset") {
          const shown = Object.assign({}, control, { meanwhile: {}, taken: {} });
          return [...thresholdsOf(theirs, form), ...holdOf(theirs.hold), parameterTexts(theirs, fields), shown];
        }
        const next = merge(form, fields, base.reference, theirs);
        const wanted = asControl(next.form, next.fields);
        const meanwhile = changedMeanwhile(wanted, base, control, fields);
        const taken = takenOver(asControl(form, fields), wanted, base, control, fields);
        return [
          // A field that stays is not written to: somebody may be typing in it.
          ...NAMES.map((name) => (next.form[name] === form[name] ? noUpdate() : next.form[name])),
          next.fields.map((field, index) => (field.value === values[index] ? noUpdate() : field.value)),
          Object.assign({}, control, { meanwhile: meanwhile, taken: taken }),
        ];
      },
      // A preset sets thresholds, scope and parameters; a held entropy stays as it is.
      fillPreset(clicks, presets, forms, ids, values, low, high) {
        const pressed = triggered();
        const nothing = [...Array(6).fill(noUpdate()), ids.map(noUpdate)];
        if (!pressed || !clicks.some(Boolean)) return nothing;
        const control = presets[pressed.method][pressed.name];
        return [...thresholdsOf(control, { low: low, high: high }), parameterTexts(control, parameterFields(forms, ids, values))];
      },
      // Switched on without a target, it begins with the present entropy.
      beginHold(on, target, newest) {
        const entropy = newest && newest.entropy;
        const known = empty(target) && !missing(entropy) && entropy > 0;
        return [on ? {} : { display: "none" }, on && known ? String(Number(entropy.toPrecision(4))) : noUpdate()];
      },
      formState(...given) {
        const form = named(given);
        const [control, base, values, methods, forms, ids, groups] = given.slice(NAMES.length);
        const [low, high] = [form.lowOn, form.highOn].map((on) => !clips(form.method) || !on);
        const sides = [!clips(form.method), low, low, !clips(form.method), high, high];
        const errors = thresholdErrors(form);
        const holds = holdErrors(form);
        const fields = parameterFields(forms, ids, values);
        const parameterErrors = fields.map((field) => (field.method === form.method ? parameterError(field) : ""));
        const shown = groups.map((group) => (group.method === form.method ? {} : { display: "none" }));
        const rest = [...errors.map(Boolean), ...sides, ...holds, parameterErrors, shown];
        if (!control) return ["no control", "gray", true, true, "This run takes no control.", "dimmed", ...rest];
        if (!base) return Array(5).fill(noUpdate()).concat("dimmed", rest);
        const wanted = asControl(form, fields);
        const count = edits(wanted, base.reference, fields).length;
        const marked = [...parameterErrors, ...holds].some(Boolean) ? "Check the fields marked in red." : "";
        const wrong = errors[0] || errors[1] || marked;
        const hint = unable(form, methods) || wrong;
        if (!count && !wrong) {
          const pending = control.pending;
          return [pending ? "pending" : "in sync", pending ? "iris" : "gray", true, true, hint, "dimmed", ...rest];
        }
        const badge = count ? count + (count > 1 ? " changes" : " change") : "unfinished";
        const meanwhile = meanwhileText(wanted, base, fields, methods);
        const shownHint = [hint, meanwhile].filter(Boolean).join(" ");
        return [badge, "orange", Boolean(hint), false, shownHint, meanwhile ? "orange" : "dimmed", ...rest];
      },
      askWhatIf(...given) {
        const form = named(given);
        const [values, forms, ids] = given.slice(NAMES.length);
        if (missing(form.method) || missing(form.scope)) return noUpdate();
        const fields = parameterFields(forms, ids, values);
        const wrong = fields.some((field) => field.method === form.method && parameterError(field)) || holdErrors(form).some(Boolean);
        const error = thresholdErrors(form).find(Boolean) || (wrong ? "Check the fields marked in red." : "");
        const question = Object.assign(asControl(form, fields), { error: error });
        clearTimeout(whatIfTimer);
        whatIfTimer = setTimeout(
          () => window.dash_clientside.set_props("what-if-question", { data: question }), WHAT_IF_STILL_MILLISECONDS);
        return noUpdate();
      },
    },
  });
})();
